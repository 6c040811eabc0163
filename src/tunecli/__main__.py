"""`python -m tunecli` is `tunecli`."""

from .cli import main

if __name__ == "__main__":
    main()
