"""What leaves a run: merged models."""

from .merge import merge_adapter

__all__ = ["merge_adapter"]
