"""Cron patterns: glide-mq's dialect, local clocks and their changes, against a count of every minute."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.schedules.cron import Cron

WRONG_PATTERNS: list[tuple[str, str]] = [
    ("* * * *", "5 fields"),
    ("60 * * * *", "minute"),
    ("* * * * 7", "day of week"),
    ("* * 0 * *", "day of month"),
    ("* * L * *", "day of month"),
    ("5/10 * * * *", "minute"),
    ("*/0 * * * *", "minute"),
    ("9-5 * * * *", "minute"),
    ("1,,2 * * * *", "minute"),
    ("? * * * *", "minute"),
    ("@daily", "5 fields"),
    ("61 * * * * *", "second"),
    ("٣ * * * *", "minute"),
]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def iso_utc(at_ms: int | None) -> str:
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


NY = "America/New_York"


class TestFacts:
    def test_both_day_fields_must_match(self) -> None:  # fact 36
        assert iso_utc(Cron.parse("0 0 13 * 5").after(ms("2026-01-01T00:00Z"))) == "2026-02-13T00:00:00"

    def test_a_local_time_that_does_not_exist_is_skipped(self) -> None:  # fact 36
        daily = Cron.parse("30 2 * * *", NY)
        assert iso_utc(daily.after(ms("2026-03-07T12:00Z"))) == "2026-03-09T06:30:00"
        assert iso_utc(daily.at_or_before(ms("2026-03-09T00:00Z"))) == "2026-03-07T07:30:00"

    def test_a_local_time_that_exists_twice_counts_once(self) -> None:  # fact 36
        daily = Cron.parse("30 1 * * *", NY)
        first = daily.after(ms("2026-11-01T00:00-04:00"))
        assert iso_utc(first) == "2026-11-01T05:30:00"
        assert iso_utc(daily.after(first or 0)) == "2026-11-02T06:30:00"
        assert daily.at_or_before(ms("2026-11-01T06:10Z")) == first
        assert daily.at_or_before(ms("2026-11-01T06:45Z")) == first

    def test_seconds_come_first(self) -> None:
        assert (
            iso_utc(Cron.parse("*/20 5 * * * *").after(ms("2026-01-01T00:05:20Z"))) == "2026-01-01T00:05:40"
        )

    def test_names_become_digits(self) -> None:
        assert Cron.parse("0 9 * JAN-mar mon,fri").pattern == "0 9 * 1-3 1,5"

    def test_a_range_of_one_value_is_that_value(self) -> None:
        after = ms("2026-01-01T00:00Z")
        for pattern, single in (
            ("5-5 * * * *", "5 * * * *"),
            ("1,05-5/2 3-3 * * *", "1,5 3 * * *"),
            ("0 0 7-7 4-4 *", "0 0 7 4 *"),
            ("0 0 * * 6-6", "0 0 * * 6"),
            ("5-55 * * * *", "5-55 * * * *"),
        ):
            assert Cron.parse(pattern).after(after) == Cron.parse(single).after(after), pattern
            assert Cron.parse(pattern).at_or_before(after) == Cron.parse(single).at_or_before(after), pattern
        assert iso_utc(Cron.parse("5-5 * * * *").after(after)) == "2026-01-01T00:05:00"

    def test_what_never_comes_is_none(self) -> None:
        assert Cron.parse("0 0 30 2 *").after(0) is None
        assert Cron.parse("0 0 30 2 *").at_or_before(ms("2026-01-01T00:00Z")) is None


def test_what_node_cannot_read_is_refused_by_its_field(subtests: pytest.Subtests) -> None:
    for pattern, field in WRONG_PATTERNS:
        with subtests.test(pattern=pattern), pytest.raises(ConfigurationError, match=field):
            Cron.parse(pattern)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time_zone"):
        Cron.parse("* * * * *", "Mars/Olympus")


def _parts(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        numbers = range(low, high + 1) if span == "*" else range(int(first), int(last or first) + 1)
        found |= set(numbers[:: int(step or 1)])
    return found


def test_matches_are_those_of_counting_every_minute(subtests: pytest.Subtests) -> None:
    for seed in range(12):
        with subtests.test(seed=seed):
            dice = random.Random(seed)
            pattern = " ".join(
                dice.choice(choices)
                for choices in (
                    ("*/7", "0", "5,35", "10-40/13"),
                    ("*", "*/5", "1-3", "2"),
                    ("*", "1-20", "*/2"),
                    ("*", "10-11", "3"),
                    ("*", "0", "1-5", "*/2"),
                )
            )
            sets = [
                _parts(text, *bounds)
                for text, bounds in zip(
                    pattern.split(), ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)), strict=True
                )
            ]
            at, end = datetime(2026, 2, 27, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC)
            counted = []
            cron = Cron.parse(pattern)
            start = at
            while at < end:
                fields = (at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
                if all(value in allowed for value, allowed in zip(fields, sets, strict=True)):
                    counted.append(round(at.timestamp() * 1000))
                at += timedelta(minutes=1)
            found, now = [], round(start.timestamp() * 1000) - 1
            while (slot := cron.after(now)) is not None and slot < end.timestamp() * 1000:
                found.append(slot)
                now = slot
            assert found == counted
            back, now = [], round(end.timestamp() * 1000) - 1
            while (slot := cron.at_or_before(now)) is not None and slot >= start.timestamp() * 1000:
                back.append(slot)
                now = slot - 1
            assert back[::-1] == counted
