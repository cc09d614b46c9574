"""Rules for names, functions looked up by name, and texts escaped for messages and logs.

Queue names, job ids and ordering keys have glide-mq's limit. It does not limit the names of jobs and
schedules; our limit leaves room to join several names of an orchestrator.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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


INDENT: Final = "    "
CONTROLS: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (
        *(code for code in range(0x20) if code != ord("\t")),
        *range(0x7F, 0xA0),  # 0x9b starts an escape sequence
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # directions of text
        *(0x2028, 0x2029),  # line separators
        *range(0xD800, 0xE000),  # lone surrogates, which cannot be encoded
    )
}
"""The escapes of control characters, for ``str.translate``."""
_LINES: Final = CONTROLS | {ord("\n"): "\n" + INDENT}


def in_line(text: str) -> str:
    """The text as one line: control characters and line ends are escaped, tabs are not."""
    return text.translate(CONTROLS)


def in_text(text: str) -> str:
    """The text with its line breaks: further lines are indented, other control characters escaped."""
    return text.translate(_LINES)


def in_block(texts: Iterable[str]) -> str:
    """Several texts as a block below a heading: every line is indented."""
    return "\n".join(INDENT + in_text(text).replace("\n", "\n" + INDENT) for text in texts)


class LocatedFunction(NamedTuple):
    """A function and its location: attribute ``name`` of ``holder``, a module or class."""

    holder: Any
    name: str
    function: Callable[..., Any]


def with_directory() -> None:
    """Add the current directory to the import path, as users of the shell expect."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def is_named(name: str) -> bool:
    """Whether it has the form ``module:function`` or ``module:Class.method``."""
    module, _, path = name.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def check_named(name: str, what: str) -> None:
    """Refuse a name that is not ``module:function``, without importing anything.

    Raises:
        ConfigurationError: It is not; the message begins with ``what``, the purpose of the function.
    """
    if not is_named(name):
        raise ConfigurationError(f"{what} {shown(name)}: no such function; write module:function")


def named_function(name: str, what: str) -> LocatedFunction:
    """Find ``module:function`` or ``module:Class.method``.

    Raises:
        ConfigurationError: It does not exist, or its module cannot be imported. The message begins with
            ``what``, the purpose of the function.
    """
    check_named(name, what)
    module, _, path = name.partition(":")
    *outer, last = path.split(".")
    try:
        holder: Any = importlib.import_module(module)
    except (ImportError, SyntaxError) as exc:
        raise ConfigurationError(f"{what} {shown(name)}: {module} cannot be imported: {exc}") from exc
    try:
        for part in outer:
            holder = getattr(holder, part)
        function = getattr(holder, last)
    except AttributeError as exc:
        raise ConfigurationError(f"{what} {shown(name)}: {module} has no function {path}") from exc
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"{what} {shown(name)} is not a function; write module:function")
    return LocatedFunction(holder, last, function)
