"""The verdict of the soak: growth is found, noise and outliers are none, and too little decides nothing."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak import limit_of
from benchmarks.trend import trend

HOUR = [at / 720 for at in range(720)]


def noisy(per_hour: float, noise: float, hours: list[float] = HOUR) -> list[float]:
    chance = random.Random(3)
    return [50 + per_hour * hour + chance.gauss(0, noise) for hour in hours]


def test_what_stays_the_same_is_flat() -> None:
    found = trend(HOUR, [7.0] * len(HOUR), limit=0.5)
    assert (found.level, found.per_hour, found.uncertainty, found.verdict) == (7.0, 0.0, 0.0, "flat")


def test_noise_around_the_same_is_flat() -> None:
    assert trend(HOUR, noisy(0, 1), limit=2).verdict == "flat"


@pytest.mark.parametrize("per_hour", [3, 10])
def test_growth_beyond_the_limit_is_found_in_noise(per_hour: float) -> None:
    found = trend(HOUR, noisy(per_hour, 1), limit=2)
    assert found.verdict == "grows"
    assert found.per_hour == pytest.approx(per_hour, abs=0.5)
    assert found.per_hour - found.uncertainty < per_hour < found.per_hour + found.uncertainty


def test_outliers_are_not_growth() -> None:
    values = noisy(0, 0.1)
    values[::50] = [500] * len(values[::50])
    assert trend(HOUR, values, limit=2).verdict == "flat"


def test_two_minutes_of_noise_decide_nothing() -> None:
    assert trend(HOUR[:24], [49.0, 49.0, 51.0, 51.0] * 6, limit=2).verdict == "undecided"


def test_a_descriptor_every_five_minutes_is_not_flat() -> None:
    values = [12.0 + int(hour * 12) for hour in HOUR]
    assert trend(HOUR, values, limit_of("worker, async: descriptors", values)).verdict == "grows"


def test_one_thread_that_a_busy_moment_started_is_flat() -> None:
    values = [12.0] * 100 + [13.0] * 620
    assert trend(HOUR, values, limit_of("worker, threads: threads", values)).verdict == "flat"


def test_a_leak_of_each_flow_is_not_flat() -> None:
    kept = [100 * 25_000 * hour / 2**20 for hour in HOUR]  # 100 bytes for each of 25,000 flows per hour
    assert (
        trend(HOUR, [50 + one for one in kept], limit_of("worker, async: memory, MiB", kept)).verdict
        == "grows"
    )
    keys = [2_000 + 25_000 * hour / 7 for hour in HOUR]  # a key for each flow of one kind
    assert trend(HOUR, keys, limit_of("server: keys", keys)).verdict == "grows"


def test_a_trend_needs_enough_samples() -> None:
    with pytest.raises(ValueError, match="needs 24 samples, got 23"):
        trend(HOUR[:23], [1.0] * 23, limit=1)
