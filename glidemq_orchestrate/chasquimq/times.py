"""When repeating jobs are due, by ChasquiMQ's rules for cron expressions.

They differ from those of our own schedules: if neither day field is ``*``, one of them must match, not both.
``?`` is ``*``, Sunday is 0 or 7, and ``5/15`` means from 5 on.
"""

from __future__ import annotations

import re
from typing import Final

from glidemq_orchestrate.chasquimq.repeats import CronTimes, Every
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds
from glidemq_orchestrate.foundation.values import lasting
from glidemq_orchestrate.schedules.cron import Cron

_OFFSET: Final = re.compile(r"([+-])(\d\d):?([0-5]\d)", re.ASCII)
_UTC: Final = (None, "", "UTC", "Z")
_FROM: Final = re.compile(r"(\d+)/(\d+)\Z", re.ASCII)
_HIGHEST: Final = (59, 59, 23, 31, 12, 6)
_SUNDAYS: Final = re.compile(r"(?:([0-6])-)?7\Z", re.ASCII)


def pattern_of(every: Duration | None, cron: str | None, time_zone: str | None) -> Every | CronTimes:
    """The times of a repeating job.

    Raises:
        ConfigurationError, InvalidJob: Not exactly one of ``every`` and ``cron``, or one is not valid.
    """
    if (every is None) == (cron is None):
        raise ConfigurationError("a schedule needs exactly one of every and cron")
    if cron is not None:
        times = CronTimes(cron, time_zone)
        following(times, 0)  # refuses what is not valid
        return times
    if time_zone is not None:
        raise ConfigurationError("time_zone is for cron only")
    return Every(milliseconds(lasting("every", every, min_=MILLISECOND)))


def following(pattern: Every | CronTimes, after_ms: int) -> int | None:
    """The first time after a moment; None if there is none within ten years.

    Raises:
        ConfigurationError: The expression or the time zone is not valid.
    """
    if isinstance(pattern, Every):
        return after_ms + pattern.interval_ms
    zone, offset_ms = pattern.time_zone, 0
    if zone in _UTC:
        zone = None
    elif found := _OFFSET.fullmatch(str(zone)):
        sign, hours, minutes = found.groups()
        zone, offset_ms = None, int(f"{sign}{int(hours) * 60 + int(minutes)}") * 60_000
    times = [Cron.parse(each, zone).after(after_ms + offset_ms) for each in _expressions(pattern.expression)]
    return min((time - offset_ms for time in times if time is not None), default=None)


def _expressions(expression: str) -> list[str]:
    """The expressions of ours of which one must match."""
    fields = expression.split()
    if len(fields) not in (5, 6):  # refused by its parser
        return [expression]
    first = 6 - len(fields)
    fields = [_field(first + at, text) for at, text in enumerate(fields)]
    if "*" in (fields[-3], fields[-1]):
        return [" ".join(fields)]
    return [" ".join([*fields[:-1], "*"]), " ".join([*fields[:-3], "*", *fields[-2:]])]


def _field(index: int, text: str) -> str:
    if text == "?" and index in (3, 5):
        return "*"
    return ",".join(_part(index, part) for part in text.split(","))


def _part(index: int, part: str) -> str:
    if index == 5 and (sunday := _SUNDAYS.match(part)):
        days = range(int(sunday[1]) if sunday[1] else 7, 8)
        return ",".join(str(day % 7) for day in days)
    if found := _FROM.match(part):
        return f"{found[1]}-{_HIGHEST[index]}/{found[2]}"
    return part
