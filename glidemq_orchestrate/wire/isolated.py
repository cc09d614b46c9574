"""Isolates the failure of an operation for one item among many."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TypeVar

from glidemq_orchestrate.errors import GlideMQError, LibraryError, TransportError
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import readable

T = TypeVar("T")
logger = logging.getLogger("glidemq_orchestrate.worker")


def isolated(op: Op[T], what: str) -> Op[T | None]:
    """Run an operation for one flow, schedule or job. Log a failure once and return None.

    Raises:
        TransportError, LibraryError, ConfigurationError: The server cannot be reached, lacks a library or
        denies a permission: this affects every item.
    """
    try:
        return (yield from op)
    except (TransportError, LibraryError):
        raise
    except Exception as exc:
        if getattr(exc, "code", None) == "NOPERM":
            raise
        report(what, exc if isinstance(exc, GlideMQError) else f"{type(exc).__name__}: {exc}")
        return None


def report(what: str, why: object) -> None:
    """Log once that an item is skipped, and why."""
    _report_once(readable(what), readable(str(why)))


@lru_cache(maxsize=1_000)  # once per reason, not every two seconds
def _report_once(what: str, why: str) -> None:
    logger.error("%s is left alone: %s", what, why, extra={"action": "left_alone"})
