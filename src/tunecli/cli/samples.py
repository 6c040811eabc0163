"""`tunecli init`: sample configurations out of the installed package."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
import yaml

from ..errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(init)


def init(
    name: Annotated[
        str | None, typer.Argument(help="Sample to copy; the list of samples if left out.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder to copy into.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """List the sample configurations, or copy one (with its data) to start from."""
    root = samples_root()
    samples = {path.stem: path for path in sorted((root / "configs").glob("*.yaml"))}
    if name is None:
        width = max(map(len, samples))
        for sample, path in samples.items():
            typer.echo(f"{sample:<{width}}  {_headline(path)}")
        return
    source = samples.get(name.removesuffix(".yaml"))
    if source is None:
        raise UsageError(f"there is no sample {name!r}; there are: {', '.join(samples)}")
    wanted = [(source, to / source.name)]
    for folder in _companions(source, root):
        wanted += [
            (file, to / file.relative_to(root))
            for file in sorted(folder.rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts
        ]
    taken = [str(target) for _, target in wanted if target.exists()]
    if taken and not force:
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        raise UsageError(f"{', '.join(taken[:3])}{more}: already there; --force replaces them")
    for file, target in wanted:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    typer.echo(str(wanted[0][1]))


def samples_root() -> Path:
    """Return the folder that holds `configs` and `examples`.

    In a wheel they lie inside the package; in an editable install, in the repository.
    """
    inside = Path(str(files("tunecli"))) / "_samples"
    return inside if inside.is_dir() else Path(__file__).resolve().parents[3]


def _headline(path: Path) -> str:
    """Return the first comment of a sample, which says what it is for."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def _companions(sample: Path, root: Path) -> list[Path]:
    """Return the folders under `examples` that a sample's values lie in."""
    text = str(yaml.safe_load(sample.read_text(encoding="utf-8")))
    folders = (path for path in sorted((root / "examples").glob("*")) if path.is_dir())
    return [folder for folder in folders if f"examples/{folder.name}/" in text]
