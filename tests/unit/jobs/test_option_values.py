"""The pause between attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate import Backoff
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs.option_values import MAX_DELAY_MS, delay_ms

BACKOFFS = st.builds(
    Backoff,
    kind=st.sampled_from(["fixed", "exponential"]),
    delay=st.timedeltas(timedelta(0), timedelta.max),
    jitter=st.floats(0, 1),
)
RANDOM = st.floats(0, 1, exclude_max=True)

WRONG_BACKOFFS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "slow"}, "'slow'"),
    ({"delay": timedelta(-1)}, "negative"),
    ({"jitter": 1.1}, "jitter"),
    ({"jitter": -0.1}, "jitter"),
    ({"jitter": float("nan")}, "jitter"),
]


@given(BACKOFFS, st.integers(1, 10_000), RANDOM)
def test_a_pause_is_never_negative_and_at_most_seven_days(
    backoff: Backoff, failures: int, random: float
) -> None:
    assert 0 <= delay_ms(backoff, failures, random) <= MAX_DELAY_MS == 604_800_000


@given(st.integers(1, 1000), st.integers(1, 18))
def test_an_exponential_pause_doubles_with_each_failure(delay: int, failures: int) -> None:
    backoff = Backoff("exponential", timedelta(milliseconds=delay))
    first, second = delay_ms(backoff, failures, 0.0), delay_ms(backoff, failures + 1, 0.0)
    assert delay_ms(backoff, 1, 0.0) == delay
    assert second == min(2 * first, MAX_DELAY_MS)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_fixed_pause_stays(delay: int, failures: int) -> None:
    assert delay_ms(Backoff("fixed", timedelta(milliseconds=delay)), failures, 0.9) == delay


@given(st.integers(0, 100_000), st.floats(0, 1), RANDOM)
def test_jitter_adds_at_most_its_share(delay: int, jitter: float, random: float) -> None:
    found = delay_ms(Backoff("fixed", timedelta(milliseconds=delay), jitter), 1, random)
    assert delay <= found <= round(delay * (1 + jitter))


@given(BACKOFFS, st.integers(1, 100), RANDOM)
def test_a_later_failure_never_waits_less(backoff: Backoff, failures: int, random: float) -> None:
    assert delay_ms(backoff, failures, random) <= delay_ms(backoff, failures + 1, random)


def test_without_a_backoff_there_is_no_pause() -> None:
    assert delay_ms(None, 7, 0.9) == 0


def test_a_backoff_that_no_worker_could_honour_is_refused(subtests: pytest.Subtests) -> None:
    for wrong, expected in WRONG_BACKOFFS:
        with subtests.test(wrong=wrong), pytest.raises(InvalidJob, match=expected):
            Backoff(**wrong)
