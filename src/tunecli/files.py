"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Force a file, or a directory's list of entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place, sync it, rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all. Floats keep their full precision."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def temporary_name(path: Path) -> Path:
    """Return where `whole_directory` collects the files of `path`."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; sync it and rename it to `path` at the end.

    If the block fails, or the process dies in it, `path` does not appear. What an earlier death
    left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        sync_tree(temporary)
        if path.exists():
            # A directory cannot be replaced in one step: the old one goes aside, then away.
            old = path.with_name(f".{path.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync_tree(directory: Path) -> None:
    """Force everything below `directory` to the disk."""
    for root, _, files in os.walk(directory):
        for name in files:
            sync(Path(root) / name)
        sync(Path(root))
