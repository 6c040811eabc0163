"""Which of several failures is shown, and how."""

import json

import pytest

from tunecli.errors import DataError, UsageError
from tunecli.launch.failures import Failure, RankFailed, exit_code, first_failure


def _caught(error: BaseException, rank: int = 0) -> Failure:
    try:
        raise error
    except BaseException as caught:
        return Failure.from_exception(caught, rank)


def test_an_error_of_ours_is_its_message(tmp_path):
    failure = _caught(DataError("rows.jsonl:3: no messages"))
    failure.write(tmp_path / "1.json")
    read = Failure.read(tmp_path / "1.json", 1)
    error = read.error(None)
    assert isinstance(error, RankFailed)
    assert (str(error), error.exit_code) == ("rank 1: rows.jsonl:3: no messages", 1)
    # What torchrun looks for.
    message = json.loads((tmp_path / "1.json").read_text())["message"]
    assert message["extraInfo"]["py_callstack"] == "rows.jsonl:3: no messages"
    assert Failure.read(tmp_path / "none.json", 1) is None


def test_wrong_input_is_not_one_ranks():
    error = _caught(UsageError("not so"), rank=1).error(None)
    assert (str(error), error.exit_code) == ("not so", 2)


def test_a_defect_keeps_its_traceback_and_loses_its_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_FAKEfakeFAKEfake1234")
    text = str(_caught(KeyError("hf_FAKEfakeFAKEfake1234"), rank=1).error(None))
    assert text.startswith("rank 1: \nTraceback (most recent call last):")
    assert "KeyError" in text
    assert "hf_FAKE" not in text


def test_a_rank_that_left_nothing(tmp_path):
    log = tmp_path / "rank-1.log"
    log.write_text("")
    error = Failure(1, 137).error(log)
    assert "rank 1: was killed by SIGKILL (out of memory?)" in str(error)
    assert str(log) in str(error)
    assert "exit code 3" in str(Failure(1, 3).error(None))


@pytest.mark.parametrize(
    ("recorded", "ended", "first"),
    [
        # The earliest error, whatever order ranks ended in.
        ([Failure(0, 1, "b", 2.0), Failure(1, 1, "a", 1.0)], [0, 1], 1),
        # Lost connections follow from something else, even if they are seen first.
        ([Failure(0, 1, "closed", 1.0, True), Failure(1, 1, "a", 2.0)], [0, 1], 1),
        ([Failure(0, 1, "closed", 1.0, True)], [(0, 1), (1, 137)], 1),
        # The launcher ends the rest with SIGTERM.
        ([Failure(0, 1, "closed", 1.0, True)], [(0, 1), (1, 143)], 0),
        # NCCL aborts the ranks that wait.
        ([Failure(1, 1, "a", 2.0)], [(0, 134), (1, 1)], 1),
        ([], [(1, 137), (0, 143)], 1),
        ([], [(1, 143), (0, 143)], 1),
    ],
)
def test_the_first_failure_is_the_one_that_others_follow_from(recorded, ended, first):
    seen = [Failure(*(end if isinstance(end, tuple) else (end, 1))) for end in ended]
    assert first_failure(recorded, seen).rank == first


def test_exit_codes():
    assert [exit_code(code) for code in (0, 2, -9)] == [0, 2, 137]
