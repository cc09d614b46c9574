"""Which names, numbers and durations are valid; errors name the argument.

Queue names, job ids and ordering keys have glide-mq's limit. It does not limit the names of jobs and
schedules; our limit leaves room to join several names of an orchestrator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow, InvalidJob
from glidemq_orchestrate.foundation.durations import duration
from glidemq_orchestrate.foundation.texts import SURROGATES, described, shown

MAX_NAME: Final = 256
MAX_LONG_NAME: Final = 1024
MAX_DURATION: Final = timedelta(days=10_000)  # scores of waiting jobs have 42 bits for a time in ms

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class NameRule:
    """The rule for one kind of name.

    Attributes:
        what: The kind of name, for errors.
        error: The class of the error.
        max_length: In characters.
        marks: Forbidden characters.
        is_plain: Whether control characters are forbidden too.
    """

    what: str
    error: type[GlideMQError] = ConfigurationError
    max_length: int = MAX_NAME
    marks: str = ""
    is_plain: bool = False

    def check(self, name: object) -> str:
        """Return the name if it is valid.

        Raises:
            GlideMQError: The name is not valid; the class is ``error``. Long names are cut in the message.
        """
        if isinstance(name, str) and 0 < len(name) <= self.max_length and not self._has_fault(name):
            return name
        if callable(name) and isinstance(own := getattr(name, "__name__", None), str):
            raise self.error(f"{self.what} must be text, got the function {own}. Fix: use its name, {own!r}")
        raise self.error(f"{self.what} {shown(name)} is not valid: use {self.rule}")

    @property
    def rule(self) -> str:
        """The rule, for errors."""
        parts = [f"1 to {self.max_length:,} characters"]
        parts += ["no control characters"] if self.is_plain else []
        parts += [f"none of {' '.join(self.marks)}"] if self.marks else []
        return ", ".join(parts)

    def _has_fault(self, name: str) -> bool:
        if self.is_plain and _CONTROLS.search(name):
            return True
        if self.marks and any(mark in name for mark in self.marks):
            return True
        return not name.isascii() and SURROGATES.search(name) is not None


QUEUE: Final = NameRule("queue name", marks="{}:")
JOB_ID: Final = NameRule("job id", InvalidJob, marks="{}:", is_plain=True)
TAG: Final = NameRule("tag", InvalidJob, is_plain=True)
JOB_NAME: Final = NameRule("job name", InvalidJob, MAX_LONG_NAME)
FLOW_ID: Final = NameRule("flow id", marks="{}", is_plain=True)
OWNER: Final = NameRule("owner", is_plain=True)
REQUEST: Final = NameRule("idempotency_key", is_plain=True)
NOTE: Final = NameRule("note", is_plain=True)
FAILURE_GROUP: Final = NameRule("failure group", is_plain=True)
FLOW_NAME: Final = NameRule("flow name", InvalidFlow, MAX_LONG_NAME)
NODE: Final = NameRule("node name", InvalidFlow, is_plain=True)
LABEL: Final = NameRule("label", InvalidFlow)
SCHEDULE: Final = NameRule("schedule name", max_length=MAX_LONG_NAME)
SUBSCRIPTION: Final = NameRule("subscription name", max_length=MAX_NAME)
SUBJECT: Final = NameRule("subject pattern", max_length=MAX_LONG_NAME)
SERVICE: Final = NameRule("service of the sentinels", is_plain=True)
PREFIX: Final = NameRule("prefix", marks="{}")


def check_request(request: str) -> str:
    """Return the idempotency key of a request if it is valid; '' means none.

    Raises:
        ConfigurationError: It is not a string, is too long, or has control characters.
    """
    return REQUEST.check(request) if request != "" else ""


def whole(
    name: str, value: object, min_: int, max_: int | None = None, *, error: type[GlideMQError] = InvalidJob
) -> None:
    """Refuse a value that is not a whole number within the bounds; the message names the option.

    Raises:
        InvalidJob, or ``error``: The value is refused.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < min_:
        raise error(f"{name} must be a whole number of at least {min_}, got {described(value)}")
    if value > (2**53 if max_ is None else max_):
        raise error(f"{name} must be at most {2**53 if max_ is None else max_}, got {described(value)}")


def amount(name: str, value: object, *, min_: float = 0.0) -> None:
    """Refuse a value that is not a finite number of at least ``min_``.

    Raises:
        InvalidJob: The value is refused.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not min_ <= value <= 2**40:
        raise InvalidJob(f"{name} must be a number from {min_:g} to {2**40}, got {described(value)}")


def lasting(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = MAX_DURATION,
    error: type[GlideMQError] = InvalidJob,
) -> timedelta:
    """``duration`` within what a job can have.

    Raises:
        InvalidJob, or ``error``: The value is refused.
    """
    return duration(name, value, min_=min_, max_=max_, error=error)


def named(name: str, value: object) -> None:
    """Refuse a value that is not a string of 1 to 256 characters.

    Raises:
        InvalidJob: The value is refused.
    """
    NameRule(name, InvalidJob).check(value)
