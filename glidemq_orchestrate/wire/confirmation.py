"""The option ``confirm`` of a connection: what a write must reach before it counts as done. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError

MAX_REPLICAS: Final = 99
FORMS: Final = "disk, replicas:N or disk,replicas:N"

_FORM: Final = re.compile(r"(?:(disk)(?:,|\Z))?(?:replicas:([1-9][0-9]?))?\Z")


class Confirmation(NamedTuple):
    """What a write must reach before it counts as done.

    Attributes:
        disk: The append-only file of the primary, on its disk.
        replicas: At least this many replicas, in their memory.
    """

    disk: bool
    replicas: int


def read_confirm(text: str | None) -> Confirmation | None:
    """Read the option; None if it is not set.

    Raises:
        ConfigurationError: It has none of the accepted forms; the message lists them.
    """
    if text is None:
        return None
    found = _FORM.match(text) if isinstance(text, str) else None
    if found is None or not text or text.endswith(","):
        raise ConfigurationError(f"confirm must be {FORMS}, with N from 1 to {MAX_REPLICAS}")
    return Confirmation(found[1] is not None, int(found[2] or 0))
