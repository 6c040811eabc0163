"""A lower floor never imports a higher one."""

import ast
from pathlib import Path

import tunecli

ROOT = Path(tunecli.__file__).parent
FLOORS = {
    "errors": 0, "_version": 0, "files": 0, "reporter": 0,
    "config": 1, "parallel": 2, "data": 3, "model": 3, "training": 4, "export": 5, "launch": 5,
    "builder": 6, "chat": 6, "api": 7, "cli": 8,
}  # fmt: skip


def _imported(file: Path):
    """Yield the parts of tunecli that a file imports, those for type checkers left out."""
    package = ["tunecli", *file.relative_to(ROOT).parts[:-1]]
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in typing_only:
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module or "").split(".")]
            yield target[1] if target[1:] and target[1] else node.names[0].name


def test_imports_run_down():
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        here = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if here not in FLOORS:
            continue
        wrong += [
            f"{file.relative_to(ROOT)} imports {name}"
            for name in _imported(file)
            if FLOORS.get(name, 0) > FLOORS[here]
        ]
    assert wrong == []


def test_every_part_has_a_floor():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__init__", "__main__", "__pycache__", "_samples", "py"} <= set(FLOORS)


def test_files_stay_small():
    long = [
        f"{file.relative_to(ROOT)}: {count}"
        for file in ROOT.rglob("*.py")
        if (count := file.read_text().count("\n")) > 450
    ]
    assert long == []
