from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecli.config.yaml import parse_value, parse_yaml, read_yaml
from tunecli.errors import ConfigError, Problem


def problem(text: str):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    [only] = caught.value.problems
    return only


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("2e-5", 2e-5), ("1e-04", 1e-4), ("1.5e3", 1500.0), ("1E5", 1e5),
     ("-1e-2", -0.01), ("+.5e1", 5.0), ("1.e3", 1000.0), ("1e+3", 1000.0), ("1_0e2", 1000.0)],
)  # fmt: skip
def test_exponents_are_floats_at_every_level(text: str, value: float) -> None:
    tree = parse_yaml(f"a: {text}\nb: {{c: [{text}]}}\n", "f").tree
    assert tree == {"a": value, "b": {"c": [value]}}
    assert type(tree["a"]) is float


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_spelling_of_a_float_loads(value: float) -> None:
    for text in (f"{value:e}", f"{value:E}", f"{value:.17g}", repr(value)):
        if any(sign in text for sign in ".eE"):
            loaded = parse_value(text)
            assert type(loaded) is float
            assert loaded == float(text)


@pytest.mark.parametrize("text", ["e5", "1e", "1e5x", "2024-01-01", "v1e4", "1-e4"])
def test_text_that_is_no_number_stays_text(text: str) -> None:
    assert parse_value(text) == text


def test_key_given_twice_names_both_lines_at_every_level() -> None:
    text = "sequence_len: 1024\na: 1\nsequence_len: 64\nb:\n  - c: 1\n    'c': 2\n"
    first, second = parse_yaml(text, "f.yaml").problems
    assert (first.key, first.line, first.column) == ("sequence_len", 3, 1)
    assert "lines 1 and 3" in first.message
    assert (second.key, second.line) == ("b.0.c", 6)
    assert "lines 5 and 6" in second.message


def test_merge_keys_still_override() -> None:
    text = (
        "base: &base {learning_rate: 1, seed: 2}\nother: &other {seed: 7, x: 1}\n"
        "run: {<<: *base, learning_rate: 3}\nrun2: {learning_rate: 3, <<: [*base, *other]}\n"
    )
    document = parse_yaml(text, "f")
    assert document.tree["run"] == {"learning_rate": 3, "seed": 2}
    assert document.tree["run2"] == {"learning_rate": 3, "seed": 2, "x": 1}
    assert not document.problems
    assert document.marks.place(("run", "learning_rate")) == (3, 33)
    assert document.marks.place(("run", "seed")) == (1, 38)
    assert document.marks.place(("run",)) == (3, 6)


def test_a_fault_in_an_anchor_is_told_once() -> None:
    document = parse_yaml("base: &b {a: 1, a: 2}\nx: {<<: *b}\ny: *b\n", "f")
    assert len(document.problems) == 1


def test_merge_takes_mappings_only() -> None:
    assert "`<<` takes a mapping" in problem("a: {<<: [3]}").message


def test_marks_place_keys_values_and_what_is_missing() -> None:
    marks = parse_yaml("a:\n  - b: 1\n    c: {d: x}\n", "f").marks
    assert marks.place(("a", 0, "c", "d")) == (3, 12)
    assert marks.place(("a", 0, "c", "d"), of_key=True) == (3, 9)
    assert marks.place(("a", 0, "missing")) == (2, 5)
    assert marks.place(("missing",)) is None


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: 1\nb:\n\tc: 2\n", 3, 1, "tab"),
        ("a: 1\n  b: 2\n", 2, 4, "colon"),
        ("a:\n   b: 1\n  c: 2\n", 3, 3, "indentation"),
        ("a: [1, 2\nb: 3\n", 2, 2, "not closed"),
        ("a: 1\nfoo\nb: 2\n", 3, 1, "neither"),
        ("a: 'x\n", 2, 1, "quotes"),
        ("a: *nope\n", 1, 4, "no &nope"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("a: %x\n", 1, 4, "special character"),
        ("a: ]\n", 1, 4, "cannot read"),
        ("a: !!python/object:os.system x\n", 1, 4, "tag"),
        ("a: !mine {b: 1}\n", 1, 4, "tag"),
        ("a: 0x_\n", 1, 4, "cannot be read"),
        ("a: !!bool maybe\n", 1, 4, "cannot be read"),
        ("a: !<x\n", 1, 7, "not valid YAML"),
        ("a: &a [*a]\n", 1, 4, "contains itself"),
        ("a: &a {b: 1, c: {<<: *a}}\n", 1, 4, "contains itself"),
    ],
)
def test_syntax_errors_have_place_and_sentence(
    text: str, line: int, column: int, words: str
) -> None:
    found = problem(text)
    assert words in found.message
    assert (found.file, found.line, found.column) == ("f.yaml", line, column)


def test_control_characters_are_named() -> None:
    found = problem("a: 1\nb: \x01\n")
    assert "#x0001" in found.message
    assert found.line == 2


def test_bombs_end_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    # Expanded, this is 10**12 values: a loader that expands it does not come back.
    assert "20,000" in problem("\n".join(lines)).message
    assert "nested too deeply" in problem("a: " + "[" * 5000 + "]" * 5000).message


@pytest.mark.parametrize(
    ("key", "meaning"),
    [("1", "a number"), ("no", "true or false"), ("on", "true or false"), ("null", "nothing"),
     ("1e3", "a float")],
)  # fmt: skip
def test_keys_that_are_no_text(key: str, meaning: str) -> None:
    [found] = parse_yaml(f"{key}: x\n", "f").problems
    assert meaning in found.message
    assert found.remedy == f'put the key in quotes: "{key}"'
    assert (found.line, found.column) == (1, 1)


def test_template_without_quotes() -> None:
    [found] = parse_yaml("a: {{x}: 1}\n", "f").problems
    assert "quotes" in str(found.remedy)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "empty"), ("# only\n", "empty"), ("- a\n", "not a list"), ("word\n", "single value")],
)
def test_top_level_must_be_a_mapping(text: str, words: str) -> None:
    assert words in problem(text).message


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).tree == {"a": 1}
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:2: is not UTF-8"):
        read_yaml(path)
    for wrong in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: "):
            read_yaml(wrong)


def test_a_faulty_value_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse_value("{a: 1, a: 2}")


@settings(max_examples=200)
@given(st.text(max_size=40) | st.text(alphabet="ab:-[]{}&*<'\"\n\t #|>!%@,?0e.", max_size=40))
def test_any_text_loads_or_is_explained(text: str) -> None:
    problems: list[Problem] = []
    try:
        parse_yaml(text, "f")
    except ConfigError as error:
        problems = error.problems
    assert all(problem.file == "f" and problem.message for problem in problems)
