import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunecli.config import Config
from tunecli.training.schedule import Calendar, Schedule


def _config(**values):
    return Config(base_model="m", datasets=[{"path": "x"}], learning_rate=1.0, **values)


def test_linear_reaches_its_values_in_every_layout():
    schedule = Schedule("linear", total=4)
    assert [1e-3 * schedule.factor(s) for s in range(4)] == pytest.approx(
        [1e-3, 7.5e-4, 5e-4, 2.5e-4], abs=0
    )


def test_cosine_ends_at_its_minimum():
    schedule = Schedule("cosine", total=10, minimum=0.1)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(10) == pytest.approx(0.1)
    assert schedule.factor(5) == pytest.approx(0.55)


def test_stable_then_decay_to_zero():
    schedule = Schedule("warmup_stable_decay", total=10, warmup=2, decay=4)
    factors = [schedule.factor(s) for s in range(11)]
    assert factors[2:7] == [1.0] * 5
    assert factors[6:] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_no_update_is_spent_at_rate_zero():
    schedule = Schedule("linear", total=8, warmup=3)
    assert [schedule.factor(s) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]


@given(
    st.sampled_from(["cosine", "linear", "constant", "warmup_stable_decay"]),
    st.integers(1, 200),
    st.integers(0, 50),
)
def test_factors_stay_between_zero_and_one(kind, total, warmup):
    schedule = Schedule(kind, total, warmup=min(warmup, total), decay=math.ceil(total / 10))
    factors = [schedule.factor(step) for step in range(total)]
    assert all(0.0 < factor <= 1.0 for factor in factors)
    after = factors[schedule.warmup :]
    assert after == sorted(after, reverse=True)


def test_warmup_is_read_from_steps_ratio_and_share():
    assert Schedule.from_config(_config(warmup_steps=3), 100).warmup == 3
    assert Schedule.from_config(_config(warmup_ratio=0.1), 100).warmup == 10
    assert Schedule.from_config(_config(warmup_steps=0.1), 100).warmup == 10
    assert Schedule.from_config(_config(), 100).warmup == 0


def _days(calendar):
    return [step for step in range(1, calendar.total + 1) if calendar.due(step)]


def test_calendar():
    keys = {"total": 10, "epoch": 5}
    assert _days(Calendar.from_keys(None, None, None, **keys)) == [5, 10]
    assert _days(Calendar.from_keys(None, None, 2, **keys)) == [3, 5, 8, 10]
    assert _days(Calendar.from_keys("steps", 4, None, **keys)) == [4, 8, 10]
    assert _days(Calendar.from_keys(None, 0.3, None, **keys)) == [3, 6, 9, 10]
    assert _days(Calendar.from_keys("no", None, None, **keys)) == []
    assert _days(Calendar.from_keys("best", None, None, **keys)) == []
    assert _days(Calendar.from_keys(None, None, 9, total=4, epoch=2)) == [1, 2, 3, 4]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4))
def test_per_epoch_is_due_that_often_and_at_each_end(epoch, times, epochs):
    calendar = Calendar.from_keys(None, None, times, total=epoch * epochs, epoch=epoch)
    days = _days(calendar)
    assert len(days) == min(times, epoch) * epochs
    assert {epoch * k for k in range(1, epochs + 1)} <= set(days)
