"""How many sessions a worker has at once, and how long each is used, from the environment.

* ``GLIDEMQ_SPARK_SESSIONS``: sessions at a time, including the shared one; 2 by default. A replacement is
  started before the old session ends, and does not count.
* ``GLIDEMQ_SPARK_SESSION_STEPS``: a session is replaced after this many steps; unlimited by default.
* ``GLIDEMQ_SPARK_SESSION_AGE``: a session is replaced at this age (seconds, or ``12h``); a day by default.
* ``GLIDEMQ_SPARK_SESSION_MEMORY``: a session is replaced when its processes use this much memory (``6g``);
  unlimited by default.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import Duration, setting_duration

PREFIX: Final = "GLIDEMQ_SPARK_SESSION"
_SIZE: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """See the module. Memory is in bytes."""

    sessions: int = 2
    steps: float = math.inf
    age: Duration = _DAY
    memory: float = math.inf

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the limits; an empty variable counts as unset.

        Raises:
            ConfigurationError: A variable is malformed.
        """
        given = os.environ if environment is None else environment
        return cls(
            int(_count(given, "S", cls().sessions)),
            _count(given, "_STEPS", math.inf),
            _age(given, "_AGE"),
            _size(given, "_MEMORY"),
        )


def _count(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{PREFIX}{name} must be a whole number, 1 or more")
    return int(text)


def _age(given: Mapping[str, str], name: str) -> timedelta:
    text = given.get(PREFIX + name)
    return setting_duration(PREFIX + name, text, min_=timedelta(seconds=1)) if text else _DAY


def _size(given: Mapping[str, str], name: str) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return math.inf
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{PREFIX}{name} must be a size such as 6g or 800m")
    size: int = int(found[1]) * 1024 ** ("kmgt".index(found[2].lower()) + 1)
    return size
