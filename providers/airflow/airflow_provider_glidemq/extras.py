"""The extras of a connection: their names, and how their values are read. Does not import Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_args

from airflow_provider_glidemq.get_provider_info import FORM_FIELDS
from glidemq_orchestrate import runs
from glidemq_orchestrate.dashboard import check_templates
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, setting_duration
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.settings import ServerKind

LONG: Final = "extra__glidemq__"
NESTED: Final = "__extra__"
KINDS: Final = get_args(ServerKind)
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off", "none")
# Names that other clients use, and the field or extra to use here.
_ELSEWHERE: Final = {
    "host": "the field host", "port": "the field port", "url": "the field host", "hosts": "the field host",
    "user": "the field login", "username": "the field login", "login": "the field login",
    "password": "the field password",
    "ssl": "tls", "ssl_ca_certs": "ca", "tls_ca_file": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key",
    "ssl_cert_reqs": "verify", "cluster": "kind", "mode": "kind", "sentinel": "kind", "database": "db",
    "service_name": "service", "master_name": "service", "timeout": "socket_timeout",
}  # fmt: skip


class Extra(NamedTuple):
    """One extra with a value: its name, the name that was given, and the parsed value."""

    name: str
    given: str
    value: Any


def read_extras(text: str | None) -> list[Extra]:
    """Read the field ``extra``. Empty and null values are ignored.

    Raises:
        ConfigurationError: It is not a JSON object, or an extra is unknown or has a wrong value.
    """
    given = list(_given(text))
    found = []
    for number, (name, value) in enumerate(given, 1):
        if _is_empty(value):
            continue
        if (known := _known_by(name)) not in EXTRAS:
            raise _unknown(name, number, hides=_may_be_torn(given))
        found.append(Extra(known, name, _read(known, name, value)))
    return found


def _given(text: str | None) -> Iterator[tuple[str, Any]]:
    try:
        extra = json.loads(text, object_pairs_hook=_once) if text and text.strip() else {}
    except ConfigurationError:
        raise
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, Mapping):
        raise ConfigurationError("extra must be a JSON object")
    for name, value in extra.items():
        if name != NESTED:
            yield name, value
        elif not _is_empty(value):
            yield from _given(value if isinstance(value, str) else json.dumps(value))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without contradictory keys: ``json`` keeps the last of two values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ConfigurationError(f"extra {shown(name)} is given twice with different values")
    return found


def _known_by(name: str) -> str:
    return name.removeprefix(LONG)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _may_be_torn(given: list[tuple[str, Any]]) -> bool:
    """Whether the extras may be the rest of a password with a ``?`` in a URI, followed by @ and the host."""
    return any("@" in f"{name}{value}" for name, value in given if _known_by(name) != "sentinel_password")


def _unknown(name: str, number: int, *, hides: bool) -> ConfigurationError:
    if hides:
        return ConfigurationError(
            f"extra number {number} is unknown; write ? in a password in a URI as %3F. "
            f"The extras are {', '.join(EXTRAS)}"
        )
    short = name.removeprefix(LONG).strip().lower().replace("-", "_")
    name_here = _ELSEWHERE.get(short) or runs.nearest(short, EXTRAS)
    advice = f"use {name_here}" if name_here else f"the extras are {', '.join(EXTRAS)}"
    return ConfigurationError(f"extra {shown(name)} is unknown: {advice}")


def _read(known: str, name: str, value: Any) -> Any:
    read, form = EXTRAS[known]
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigurationError(f"extra {name} must be {form}") from None


def _text(value: Any) -> str:
    """Text; Airflow may have turned digits in a URI into a number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError
    str(value).encode()  # lone surrogates cannot be sent
    return str(value)


def _truth(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise ValueError
    return text in _TRUE


def _whole_number(value: Any) -> int:
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise ValueError
    return int(text)


def _seconds(value: Any) -> float:
    return setting_duration("it", value, min_=MILLISECOND).total_seconds()


def _kind(value: Any) -> str:
    text = str(value).strip().lower()
    if text not in KINDS:
        raise ValueError
    return text


def _urls(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return check_templates(value)


_A_TEXT: Final = (
    _text,
    "a text; where a URI holds one that looks like JSON, such as true or 1e5, define the connection as JSON",
)
_SOME_SECONDS: Final = (_seconds, "a duration above zero: seconds, or a text such as 5m")
# How to read a value, and its form: by the name of the extra, or by its type in the form.
_READ: Final[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
    "kind": (_kind, "single, cluster or sentinel"),
    "connect_timeout": _SOME_SECONDS,
    "socket_timeout": _SOME_SECONDS,
    "confirm_timeout": _SOME_SECONDS,
    "dashboard_url": (_urls, "http or https URLs with {flow_id}, {queue} or {job_id} in them"),
    "string": _A_TEXT,
    "boolean": (_truth, "true or false"),
    "integer": (_whole_number, "a whole number of at most 6 digits"),
}
EXTRAS: Final = {name: _READ.get(name) or _READ[kind] for name, kind, _, _ in FORM_FIELDS}
