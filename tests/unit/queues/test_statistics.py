"""Buckets, means and percentiles of the statistics of a queue."""

from __future__ import annotations

import math
import statistics as standard
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.queues import statistics
from glidemq_orchestrate.queues.statistics import DAY_MS, QueueStatistics, Tally, bucket_of
from glidemq_orchestrate.wire.keys import QueueKeys

NOON_MS = int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp() * 1_000)


def tally_of(*milliseconds: float) -> Tally:
    tally = Tally()
    tally.add(milliseconds)
    return tally


def read(fields: dict[str, str], day: date | None = None) -> QueueStatistics:
    operation = statistics.statistics([QueueKeys("glide", "etl")], day, NOON_MS)
    next(operation)
    with pytest.raises(StopIteration) as ended:
        operation.send([[part for pair in fields.items() for part in pair]])
    found: QueueStatistics = ended.value.value
    return found


def fields_of(tally: Tally, kind: str = "w", handler: str = "load") -> dict[str, str]:
    numbers = {"count": tally.count, "mean": tally.mean, "squares": tally.squares, **tally.buckets}
    return {f"{kind}:{what}:{handler}": repr(value) for what, value in numbers.items()}


@given(some.lists(some.floats(0, 1e10), max_size=20), some.lists(some.floats(0, 1e10), max_size=20))
def test_merged_tallies_are_those_of_all_durations(first: list[float], second: list[float]) -> None:
    merged, whole = tally_of(*first), tally_of(*first, *second)
    merged.merge(tally_of(*second))
    assert (merged.count, merged.buckets) == (whole.count, whole.buckets)
    assert math.isclose(merged.mean, whole.mean, rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(merged.squares, whole.squares, rel_tol=1e-6, abs_tol=1e-3)


@given(some.integers(0, 40 * DAY_MS))
def test_a_duration_is_within_its_bucket(milliseconds: int) -> None:
    (bucket,) = read(fields_of(tally_of(milliseconds))).waiting.buckets
    exact = timedelta(milliseconds=milliseconds)
    assert bucket.start <= exact < bucket.end + timedelta(microseconds=1)
    assert bucket.count == 1


def test_twenty_jobs_a_second_apart_have_the_numbers_of_qless() -> None:
    tally = tally_of(*(1_000 * second for second in range(20)))
    assert tally.mean == 9_500
    assert math.isclose(math.sqrt(tally.squares / 19), 5_916.079783099, rel_tol=1e-12)
    waiting = read(fields_of(tally)).waiting
    assert (waiting.count, waiting.mean) == (20, timedelta(seconds=9.5))
    assert waiting.deviation == timedelta(seconds=standard.stdev(range(20)))
    assert waiting.histogram == (1,) * 20 + (0,) * 128


@pytest.mark.parametrize(
    ("seconds", "index"), [(100.5, 60), (3_899.5, 119), (0.2, 0), (59.9, 59), (6 * 86_400, 147)]
)
def test_a_long_duration_has_the_bucket_of_qless(seconds: float, index: int) -> None:
    histogram = read(fields_of(tally_of(seconds * 1_000))).waiting.histogram
    assert (len(histogram), histogram[index], sum(histogram)) == (148, 1, 1)


def test_a_duration_beyond_qless_has_a_bucket_but_no_place_in_its_histogram() -> None:
    waiting = read(fields_of(tally_of(7 * DAY_MS))).waiting
    assert waiting.buckets[0].start == timedelta(days=7)
    assert not any(waiting.histogram)


def test_a_percentile_is_near_the_exact_one() -> None:
    waiting = read(fields_of(tally_of(*range(1, 1_001)))).waiting
    for percent in (10, 50, 95, 99):
        found = waiting.percentile(percent)
        assert found is not None
        assert found / timedelta(milliseconds=percent * 10) == pytest.approx(1, rel=0.03)
    assert read({}).waiting.percentile(50) is None
    with pytest.raises(ConfigurationError, match="from 0 to 100"):
        waiting.percentile(101)


def test_a_day_without_jobs_has_no_mean() -> None:
    nothing, one = read({}).waiting, read(fields_of(tally_of(7))).waiting
    assert (nothing.count, nothing.mean, nothing.deviation) == (0, None, None)
    assert (one.count, one.mean, one.deviation) == (1, timedelta(milliseconds=7), timedelta(0))


def test_the_statistics_of_the_queue_are_those_of_all_handlers() -> None:
    fields = fields_of(tally_of(1, 2), "r", "a:b") | fields_of(tally_of(9), "r", "c") | {"c:retries:c": "2"}
    found = read(fields)
    assert (found.running.count, found.running.mean) == (3, timedelta(milliseconds=4))
    assert (found.day, found.retries, found.failures) == (date(2026, 11, 29), 2, 0)
    assert [(one.handler, one.running.count, one.retries) for one in found.handlers] == [
        ("c", 1, 2),
        ("a:b", 2, 0),
    ]


@given(some.dictionaries(some.text(), some.text()))
def test_fields_in_another_form_are_ignored(fields: dict[str, str]) -> None:
    assert read(fields).day == date(2026, 11, 29)


@pytest.mark.parametrize("text", ["nan", "inf", "x", "-1", "9" * 400, ""])
@pytest.mark.parametrize("what", ["count", "mean", "squares", "s3", "d99999999999", "f1000"])
def test_a_broken_number_counts_as_what_can_be_read(what: str, text: str) -> None:
    fields = fields_of(tally_of(3_000, 4_000)) | {f"w:{what}:load": text}
    found = read(fields)
    assert found.waiting.percentile(50) in (None, *(one.waiting.percentile(50) for one in found.handlers))


@pytest.mark.parametrize(
    ("day", "reason"),
    [
        (date(2026, 11, 30), "no statistics of 2026-11-30 yet: today is 2026-11-29"),
        (date(2026, 10, 29), "of 2026-10-29 are gone: they are kept for 30 days"),
        ("2026-11-29", "must be a datetime.date, got str"),
        (datetime(2026, 11, 29, tzinfo=UTC), "must be a datetime.date, got datetime"),
    ],
)
def test_a_day_without_statistics_is_refused(day: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        next(statistics.statistics([QueueKeys("glide", "etl")], day, NOON_MS))


def test_the_oldest_day_is_read() -> None:
    assert read({}, date(2026, 10, 30)).handlers == ()


def test_the_names_of_buckets() -> None:
    found = [
        bucket_of(ms) for ms in (-1, 0, 1, 2, 999, 1_000, 9_999, 10_000, 59_999, 60_000, 3_600_000, DAY_MS)
    ]
    assert found == ["f0", "f0", "f0", "f4", "f39", "q4", "q39", "s10", "s59", "m1", "h1", "d1"]


def test_many_durations_at_once_are_the_same_as_one_by_one() -> None:
    values = [*(number * 1.7 for number in range(2_000)), -5, 86_400_000.5, *range(50)]
    single, many = Tally(), Tally()
    for value in values:
        single.add([value])
    for part in (values[:1_500], values[1_500:], []):
        many.add(part)
    assert (many.count, many.buckets) == (single.count, single.buckets)
    assert many.mean == pytest.approx(single.mean)
    assert many.squares == pytest.approx(single.squares)
