"""The rules for names, with every limit. Independent of keys and servers.

Queue names, job ids and ordering keys have glide-mq's limit. It does not limit the names of jobs and
schedulers; our limit leaves room to join several names of an orchestrator.
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
_SURROGATE: Final = r"\ud800-\udfff"


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
        return not name.isascii() and _SURROGATES.search(name) is not None


_CONTROLS: Final = re.compile(f"[{_CONTROL}]")
_SURROGATES: Final = re.compile(f"[{_SURROGATE}]")  # lone surrogates cannot be sent


QUEUE: Final = NameRule("queue name", marks="{}:")
JOB_ID: Final = NameRule("job id", InvalidJob, marks="{}:", is_plain=True)
JOB_NAME: Final = NameRule("job name", InvalidJob, MAX_LONG_NAME)
FLOW_ID: Final = NameRule("flow id", marks="{}", is_plain=True)
OWNER: Final = NameRule("owner", is_plain=True)
REQUEST: Final = NameRule("idempotency_key", is_plain=True)
NOTE: Final = NameRule("note", is_plain=True)
FLOW_NAME: Final = NameRule("flow name", InvalidFlow, MAX_LONG_NAME)
NODE: Final = NameRule("node name", InvalidFlow, is_plain=True)
LABEL: Final = NameRule("label", InvalidFlow)
SCHEDULER: Final = NameRule("scheduler name", max_length=MAX_LONG_NAME)
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


def shown(name: object) -> str:
    """A name for an error message: quoted, and cut if it is long."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    if len(name) <= SHOWN:
        return ascii(name) if _SURROGATES.search(name) else repr(name)
    return f"{shown(name[:SHOWN])}... ({len(name):,} characters)"


def described(value: object) -> str:
    """A value for an error message: cut if it is long; its type if it has no printable form."""
    if isinstance(value, str):
        return shown(value)
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  of any class; and numbers of thousands of digits have none
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def short_reason(reason: str) -> str:
    """A reason in its stored form: at most 4,000 characters, without lone surrogates."""
    text = reason.encode(errors="replace").decode()  # lone surrogates, as in file names, cannot be sent
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
