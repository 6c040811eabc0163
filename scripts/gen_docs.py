"""Write docs/config.md from the schema."""

from pathlib import Path

from tunecli.config import reference_page


def main() -> None:
    """Write the page."""
    target = Path(__file__).resolve().parents[1] / "docs" / "config.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
