import json

import pytest

from tunecli.files import whole_directory, write_json, write_text


def test_a_file_appears_whole(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "one")
    write_text(tmp_path / "deep" / "a.txt", "two")
    assert (tmp_path / "deep" / "a.txt").read_text() == "two"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.txt"]
    write_json(tmp_path / "b.json", {"x": 0.1 + 0.2})
    assert json.loads((tmp_path / "b.json").read_text())["x"] == 0.1 + 0.2


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "made"

    def fail_in_the_middle():
        with whole_directory(target) as directory:
            (directory / "a").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_in_the_middle()
    assert list(tmp_path.iterdir()) == []
    for text in ("1", "2"):
        with whole_directory(target) as directory:
            (directory / "a").write_text(text)
            assert not (target / "b").exists()
        assert (target / "a").read_text() == text
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_leftovers_of_a_killed_process_are_cleared(tmp_path):
    leftover = tmp_path / ".made.tmp"
    leftover.mkdir()
    (leftover / "old").write_text("x")
    with whole_directory(tmp_path / "made") as directory:
        (directory / "new").write_text("y")
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["new"]
