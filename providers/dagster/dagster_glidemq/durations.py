"""Durations in config: seconds, a text such as ``5m``, or ``{env: NAME}``; in Python also a ``timedelta``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import dagster as dg
from pydantic import BeforeValidator, ValidationInfo

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, setting_duration

DAY: Final = timedelta(days=1)
ZERO: Final = timedelta(0)


def in_seconds(name: str, value: object, *, min_: timedelta = ZERO, max_: timedelta = timedelta.max) -> float:
    """The seconds of a duration in config.

    Raises:
        ConfigurationError: The value is not a duration, or out of bounds, or its environment variable is not
            set.
    """
    if isinstance(value, dg.EnvVar):
        value = {"env": value.env_var_name}
    if isinstance(value, Mapping) and set(value) == {"env"}:
        value = os.environ.get(variable := str(value["env"]))
        if value is None:
            raise ConfigurationError(f"{name}: the environment variable {variable} is not set")
    return setting_duration(name, value, min_=min_, max_=max_).total_seconds()


def duration_field(default: float, description: str) -> dg.Field:
    """A duration field for components whose config has no class."""
    text = f"{description} Seconds, or a text such as 5m."
    return dg.Field(dg.Any, is_required=False, default_value=default, description=text)


def _reader(min_: timedelta = ZERO, *, is_optional: bool = False) -> BeforeValidator:
    """Reads the value in seconds. An ``EnvVar`` stays unread until the resource is used."""

    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dg.EnvVar) or (is_optional and value is None):
            return value
        return in_seconds(info.field_name or "it", value, min_=min_)

    return BeforeValidator(read)


if TYPE_CHECKING:
    ConfigDuration = timedelta | float | str
    PositiveConfigDuration = ConfigDuration
    OptionalConfigDuration = ConfigDuration | None
    OptionalPositiveConfigDuration = ConfigDuration | None
else:  # Dagster knows no union of a number and a text
    ConfigDuration = Annotated[Any, _reader()]
    PositiveConfigDuration = Annotated[Any, _reader(MILLISECOND)]
    OptionalConfigDuration = Annotated[Any, _reader(is_optional=True)]
    OptionalPositiveConfigDuration = Annotated[Any, _reader(MILLISECOND, is_optional=True)]
