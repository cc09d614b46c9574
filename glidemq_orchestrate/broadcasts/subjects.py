"""Subject patterns of broadcasts: segments between dots; ``*`` matches one, a final ``>`` one or more."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.names import SUBJECT


def check_pattern(pattern: str) -> str:
    """Return the pattern if it is valid.

    Raises:
        ConfigurationError: It is empty, or ``>`` is not its last segment.
    """
    segments = SUBJECT.check(pattern).split(".")
    if ">" in segments[:-1]:
        raise ConfigurationError(f"subject pattern {pattern!r} is not valid: > must be the last segment")
    return pattern


def matches(subject: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches; without patterns every subject does."""
    return not patterns or any(_fits(subject.split("."), pattern.split(".")) for pattern in patterns)


def _fits(segments: list[str], pattern: list[str]) -> bool:
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        if len(segments) <= len(pattern):
            return False
    elif len(segments) != len(pattern):
        return False
    return all(wanted in ("*", found) for wanted, found in zip(pattern, segments, strict=False))
