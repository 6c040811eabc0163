"""The command line: parse, call one function, print."""

from .app import main

__all__ = ["main"]
