"""Checks of the operators' parameters, as far as their values are known while the DAG is parsed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args

from airflow_provider_glidemq.callbacks import check_callbacks
from airflow_provider_glidemq.templates import is_unknown
from airflow_provider_glidemq.version_compat import configuration
from glidemq_orchestrate.foundation.values import FLOW_ID
from glidemq_orchestrate.runs import Duration, OnExisting

_VARIABLE: Final = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
_FLAGS: Final = ("deferrable", "require_workers", "cancel_on_kill", "show_logs")
_TEXTS: Final = ("flow_id", "glidemq_conn_id")
MAX_SECONDS: Final = 365 * 86_400.0
LEAST: Final = 0.001
G = TypeVar("G")
H = TypeVar("H")


def default_deferrable() -> bool:
    """``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if set; else True.

    ``airflow.cfg`` is ignored: Airflow writes its own default there, False, and these operators exist to free
    the slot.
    """
    if _VARIABLE not in os.environ:
        return True
    return bool(configuration().getboolean("operators", "default_deferrable"))


def check_parameters(given: dict[str, Any]) -> None:
    """Refuse values that no operator of this provider accepts.

    Raises:
        ValueError: A value is out of range or not one of the allowed values.
        TypeError: A value has the wrong type. Templates and outputs of other tasks are always accepted.
    """
    how = given["on_existing"]
    if how is not None and how not in get_args(OnExisting):
        raise ValueError(f"on_existing must be None or one of {', '.join(get_args(OnExisting))}, got {how!r}")
    for name in _FLAGS:
        if not isinstance(given[name], bool):
            raise TypeError(f"{name} must be True or False, got {given[name]!r}")
    for name in _TEXTS:
        value = given[name]
        if not isinstance(value, str) and not is_unknown(value) and (value is not None or name != "flow_id"):
            raise TypeError(f"{name} must be a string, got {value!r}")
    flow_id = given["flow_id"]
    if flow_id and isinstance(flow_id, str) and not is_unknown(flow_id):
        FLOW_ID.check(flow_id)
    check_callbacks(given["callbacks"])


def check_text(name: str, value: object) -> None:
    """Refuse an empty name while the DAG is parsed. Templates and outputs of tasks are always accepted.

    Raises:
        ValueError: The value is not a string, or empty.
    """
    if not is_unknown(value) and (not isinstance(value, str) or not value):
        raise ValueError(f"{name} must be a text that is not empty, got {value!r}")


def in_seconds(name: str, value: Duration, least: float = LEAST) -> float:
    """A duration in seconds, as Airflow stores it.

    Raises:
        ValueError, TypeError: The value is not a duration, or out of range.
    """
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, got {value!r}")
    if not least <= seconds <= MAX_SECONDS:
        raise ValueError(f"{name} must be at least {least:g} seconds, and at most a year, got {value!r}")
    return float(seconds)


class Converted(Generic[G, H]):
    """A field of a dataclass that takes other types than it holds.

    Args:
        default: The default, as it is held.
        read: Converts a value; called with the name of the field and the value.
    """

    def __init__(self, default: H, read: Callable[[str, G], H]) -> None:
        self._default, self._read, self._name = default, read, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, made: object, owner: type) -> H:
        found: H = self._default if made is None else made.__dict__[self._name]
        return found

    def __set__(self, made: object, value: G) -> None:
        made.__dict__[self._name] = self._read(self._name, value)


Seconds: TypeAlias = Converted[Duration, float]
OptionalSeconds: TypeAlias = Converted[Duration | None, float | None]
