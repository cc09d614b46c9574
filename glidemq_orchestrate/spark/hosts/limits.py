"""How many sessions a worker has at once, and how long each is used; from the environment.

* ``GLIDEMQ_SPARK_SESSIONS``: sessions at a time, the shared one included; 2 by default. One that takes the
  place of another is started before that ends, and not counted.
* ``GLIDEMQ_SPARK_SESSION_STEPS``: after so many steps another takes its place; unlimited by default.
* ``GLIDEMQ_SPARK_SESSION_SECONDS``: after so long; a day by default.
* ``GLIDEMQ_SPARK_SESSION_MEMORY``: when its processes have so much memory (``6g``); unlimited by
  default.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from glidemq_orchestrate.errors import ConfigurationError

PREFIX: Final = "GLIDEMQ_SPARK_SESSION"
_SIZE: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """See the module. Memory is in bytes."""

    sessions: int = 2
    steps: float = math.inf
    seconds: float = _DAY
    memory: float = math.inf

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read them; an empty variable counts as unset.

        Raises:
            ConfigurationError: One is not of its form.
        """
        given = os.environ if environment is None else environment
        return cls(
            int(_count(given, "S", cls().sessions)),
            _count(given, "_STEPS", math.inf),
            _count(given, "_SECONDS", _DAY),
            _size(given, "_MEMORY"),
        )


def _count(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{PREFIX}{name} must be a whole number, 1 or more")
    return int(text)


def _size(given: Mapping[str, str], name: str) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return math.inf
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{PREFIX}{name} must be a size such as 6g or 800m")
    size: int = int(found[1]) * 1024 ** ("kmgt".index(found[2].lower()) + 1)
    return size
