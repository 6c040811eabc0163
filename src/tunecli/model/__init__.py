"""Tokenizer, weights, adapters, attention and loss."""
