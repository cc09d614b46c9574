"""What may be a name: every bound is here. Knows no key and no server.

Queue names, job ids and ordering keys have glide-mq's bound. It bounds no names of jobs and schedulers; ours
leave room for some names of an orchestrator in one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow, InvalidJob

MAX_NAME: Final = 256
MAX_LONG_NAME: Final = 1024
MAX_REASON: Final = 4_000
SHOWN: Final = 60

_CONTROL: Final = r"\x00-\x1f\x7f"
_HALF: Final = r"\ud800-\udfff"


@dataclass(frozen=True, slots=True)
class NameRule:
    """What one kind of name may be.

    Attributes:
        what: The kind, for errors.
        error: What is raised.
        most: Longest, in characters.
        marks: Characters that it may not have.
        is_plain: Whether control characters are refused too.
    """

    what: str
    error: type[GlideMQError] = ConfigurationError
    most: int = MAX_NAME
    marks: str = ""
    is_plain: bool = False

    def check(self, name: object) -> str:
        """Return the name if it is one.

        Raises:
            GlideMQError: Of the class ``error``; it is none. Long names are cut in the message.
        """
        if isinstance(name, str) and 0 < len(name) <= self.most and not self._has_fault(name):
            return name
        raise self.error(f"{self.what} {shown(name)} is not usable: {self.rule}")

    @property
    def rule(self) -> str:
        """The rule, for errors."""
        parts = [f"1 to {self.most:,} characters"]
        parts += ["no control characters"] if self.is_plain else []
        parts += [f"none of {' '.join(self.marks)}"] if self.marks else []
        return ", ".join(parts)

    def _has_fault(self, name: str) -> bool:
        if self.is_plain and _CONTROLS.search(name):
            return True
        if self.marks and any(mark in name for mark in self.marks):
            return True
        return not name.isascii() and _HALVES.search(name) is not None


_CONTROLS: Final = re.compile(f"[{_CONTROL}]")
_HALVES: Final = re.compile(f"[{_HALF}]")  # half a character: no text that can be sent


QUEUE: Final = NameRule("queue name", marks="{}:")
JOB_ID: Final = NameRule("job id", InvalidJob, marks="{}:", is_plain=True)
JOB_NAME: Final = NameRule("job name", InvalidJob, MAX_LONG_NAME)
FLOW_ID: Final = NameRule("flow id", marks="{}", is_plain=True)
FLOW_NAME: Final = NameRule("flow name", InvalidFlow, MAX_LONG_NAME)
NODE: Final = NameRule("node name", InvalidFlow, is_plain=True)
LABEL: Final = NameRule("label", InvalidFlow)
SCHEDULER: Final = NameRule("scheduler name", most=MAX_LONG_NAME)
SUBSCRIPTION: Final = NameRule("subscription name", most=MAX_NAME)
SUBJECT: Final = NameRule("subject pattern", most=MAX_LONG_NAME)
SERVICE: Final = NameRule("service of the sentinels", is_plain=True)
PREFIX: Final = NameRule("prefix", marks="{}")


def shown(name: object) -> str:
    """A name for errors, cut where it is long."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    if len(name) <= SHOWN:
        return ascii(name) if _HALVES.search(name) else repr(name)
    return f"{shown(name[:SHOWN])}... ({len(name):,} characters)"


def short_reason(reason: str) -> str:
    """A reason as it is kept: at most 4,000 characters, and something that can be sent."""
    text = reason.encode(errors="replace").decode()  # half a character, as in names of files, cannot be sent
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
