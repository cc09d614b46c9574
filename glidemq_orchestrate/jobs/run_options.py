"""Reads the stored job options that a worker needs. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs.backoff import Backoff
from glidemq_orchestrate.jobs.options import Fallback
from glidemq_orchestrate.wire.codec import is_utf8
from glidemq_orchestrate.wire.stored import amount

_CACHED: Final = 1024


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The stored job options that a worker needs; unknown and broken parts are ignored.

    ``remove_on_complete`` and ``remove_on_fail`` are glide-mq's retention as ``mode count age``, '' for none.
    ``portable``: flow and node of a job on the portable path;
    ``is_wide``: it has more dependents than one server call notifies.
    """

    attempts: int
    backoff: Backoff | None
    timeout: timedelta | None
    backoff_name: str = ""
    remove_on_complete: str = ""
    remove_on_fail: str = ""
    lock_duration: timedelta | None = None
    fallbacks: tuple[Fallback, ...] = ()
    trace: str = ""
    portable: tuple[str, str] | None = None
    is_wide: bool = False
    must_pass: bool = False

    @classmethod
    def from_wire(cls, text: str) -> RunOptions:
        """Read the ``opts`` JSON."""
        return _run_options(text) if len(text) <= _CACHED else _run_options.__wrapped__(text)


@lru_cache(maxsize=1024)  # most jobs of a queue have the same options
def _run_options(text: str) -> RunOptions:
    try:
        wire = json.loads(text or "{}")
    except (ValueError, RecursionError):
        wire = {}
    if not isinstance(wire, dict):
        wire = {}
    timeout, lock = amount(wire.get("timeout")), amount(wire.get("lockDuration"))
    backoff, trace, mark = wire.get("backoff"), wire.get("traceparent"), wire.get("gmo")
    return RunOptions(
        attempts=max(int(amount(wire.get("attempts"))), 1),
        backoff=_backoff(backoff),
        timeout=timedelta(milliseconds=timeout) if timeout > 0 else None,
        backoff_name=_backoff_name(backoff),
        remove_on_complete=_retention(wire.get("removeOnComplete")),
        remove_on_fail=_retention(wire.get("removeOnFail")),
        lock_duration=timedelta(milliseconds=lock) if 1000 <= lock <= 86_400_000 else None,
        fallbacks=_fallbacks(wire.get("fallbacks")),
        trace=trace if isinstance(trace, str) else "",
        portable=_portable(mark),
        is_wide=isinstance(mark, dict) and "wide" in mark,
        must_pass=wire.get("mustPass") is True,
    )


def _portable(mark: object) -> tuple[str, str] | None:
    """Flow and node of a node on the portable path; names that are not valid are ignored."""
    flow, node = (mark.get("flow"), mark.get("node")) if isinstance(mark, dict) else (None, None)
    if not isinstance(flow, str) or not isinstance(node, str) or not is_utf8(flow + node):
        return None
    return flow, node


def _backoff_name(wire: object) -> str:
    """The name of a backoff function of the worker; '' for the built-in ones."""
    name = wire.get("type") if isinstance(wire, dict) else None
    return name if isinstance(name, str) and name not in ("fixed", "exponential") else ""


def _retention(wire: object) -> str:
    if wire is True:
        return "true 0 0"
    if isinstance(wire, dict) and (wire.get("age") or wire.get("count")):
        return f"age_count {int(amount(wire.get('count')))} {int(amount(wire.get('age')))}"
    count = int(amount(wire))
    return f"count {count} 0" if count else ""


def _backoff(wire: object) -> Backoff | None:
    if not isinstance(wire, dict):
        return None
    return Backoff(
        kind="exponential" if wire.get("type") == "exponential" else "fixed",
        delay=timedelta(milliseconds=amount(wire.get("delay"))),
        jitter=min(amount(wire.get("jitter")), 1.0),
    )


def _fallbacks(wire: object) -> tuple[Fallback, ...]:
    if not isinstance(wire, list):
        return ()
    found = []
    for part in wire:
        fields = part if isinstance(part, dict) else {}
        try:
            found.append(Fallback(fields.get("model", ""), fields.get("provider"), fields.get("metadata")))
        except InvalidJob:
            return ()  # omitting one would shift the others
    return tuple(found)
