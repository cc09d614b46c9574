"""Cron patterns as glide-mq interprets them: both day fields must match, and times are local.

A local time that does not exist (spring forward) is skipped; one that exists twice (fall back) counts once,
at its first instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import described

if TYPE_CHECKING:
    from croniter import croniter

HORIZON_YEARS: Final = 10
MAX_CHARACTERS: Final = 1_000

_PART: Final = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?\Z", re.ASCII)
_RANGE: Final = re.compile(r"(\d+)-(\d+)(?:/\d+)?", re.ASCII)
_RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_FIELDS: Final = ("second", "minute", "hour", "day of month", "month", "day of week")
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked pattern: 5 fields, or 6 with seconds first, made of digits only.

    Attributes:
        pattern: The text as glide-mq would store it.
        zone: IANA name; None is UTC.
    """

    pattern: str
    zone: str | None = None

    @classmethod
    def parse(cls, pattern: str, zone: str | None = None) -> Cron:
        """Check a pattern. Names (``mon``, ``jan``) become digits, so that Node can read what is stored.

        Raises:
            ConfigurationError: The pattern or the time zone is not valid; the message names the field.
        """
        fields = pattern[:MAX_CHARACTERS].lower().split()
        if len(pattern) > MAX_CHARACTERS:
            raise ConfigurationError(
                f"cron must have at most {MAX_CHARACTERS} characters, got {len(pattern):,}"
            )
        if len(fields) not in (5, 6):
            raise ConfigurationError(
                f"cron must have 5 fields, or 6 with seconds first, got {described(pattern)}"
            )
        first = 6 - len(fields)
        checked = [_field(first + at, text) for at, text in enumerate(fields)]
        if zone is not None:
            _zone(zone)
        return cls(" ".join(checked), zone)

    def after(self, at_ms: int) -> int | None:
        """The first match strictly later than ``at_ms``; None when there is none within ten years."""
        return self._search(at_ms, forward=True)

    def at_or_before(self, at_ms: int) -> int | None:
        """The last match not later than ``at_ms``; None when there is none within ten years."""
        return self._search(at_ms + 1, forward=False)

    def _search(self, at_ms: int, *, forward: bool) -> int | None:
        """The nearest match strictly after or before an instant, skipping local times that do not exist."""
        with importing():
            from croniter import CroniterBadDateError  # noqa: PLC0415  only schedules need the import

        zone = _zone(self.zone or "UTC")
        local = datetime.fromtimestamp(at_ms / 1000, zone).replace(tzinfo=None, fold=0)
        # Backwards from the second pass of a repeated hour: matches of its first pass have later local times.
        start = local if forward else max(local, _end_of_fold(local, zone))
        matches = _matches(self.pattern, start)
        for _ in range(100_000):
            try:
                found = (matches.get_next if forward else matches.get_prev)(datetime)
            except CroniterBadDateError:
                return None
            moment = _instant(found.replace(tzinfo=None), zone)
            if moment is not None and ((moment > at_ms) if forward else (moment < at_ms)):
                return moment
        return None


def _matches(pattern: str, start: datetime) -> croniter:
    with importing():
        from croniter import croniter  # noqa: PLC0415  only schedules need the import

    return croniter(
        _RANGE.sub(_first_of_one, pattern),
        start.replace(tzinfo=UTC),  # search without clock changes; the zone is applied to the match
        day_or=False,
        second_at_beginning=True,
        max_years_between_matches=HORIZON_YEARS,
    )


def _first_of_one(found: re.Match[str]) -> str:
    """A range of one value as that value: croniter would take ``5-5`` for all values."""
    return found[1] if int(found[1]) == int(found[2]) else found[0]


def _instant(local: datetime, zone: ZoneInfo) -> int | None:
    """The first instant of a local time in ms since the epoch; None when that time does not exist."""
    moment = local.replace(tzinfo=zone, fold=0)
    if moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) != local:
        return None
    return round(moment.timestamp()) * 1000


def _end_of_fold(local: datetime, zone: ZoneInfo) -> datetime:
    """The local time, moved past the repeated hour that it may be in."""
    first, second = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    if first is None or second is None or first <= second:
        return local
    return local + (first - second)


def _field(index: int, text: str) -> str:
    """A checked field of a pattern, with its names as digits."""
    low, high = _RANGES[index]
    names = {4: _MONTHS, 5: _DAYS}.get(index, [])
    for number, name in enumerate(names, start=low):
        text = re.sub(rf"\b{name}\b", str(number), text)
    for part in text.split(","):
        match = _PART.match(part)
        first, last, step = (
            (int(group) if group else None for group in match.groups()) if match else (-1, 0, 0)
        )
        is_sound = (
            (first is None or low <= first <= high)
            and (last is None or (first or 0) <= last <= high)
            and (step is None or step >= 1)
            and not (step is not None and first is not None and last is None)
        )
        if not is_sound:
            raise ConfigurationError(
                f"cron field {_FIELDS[index]} cannot be {part!r}: "
                f"use *, n, a-b, */s, a-b/s within {low}-{high}"
            )
    return text


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ConfigurationError(f"time_zone {described(name)} is unknown on this machine") from exc
