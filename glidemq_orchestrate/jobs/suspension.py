"""Suspended jobs, and the signals that resume them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from glidemq_orchestrate.jobs import calls as job_calls
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.bounds import named
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.job_hash import missing
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import Json, JsonLike, encode, readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, parsed, read_progress


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that resumed a suspended job: its name, its data and when it arrived."""

    name: str
    data: Json
    received_at: datetime | None


@dataclass(frozen=True, slots=True)
class SuspendInfo:
    """Why a job is suspended, since when, until when (None: no limit), and the signals received."""

    reason: str | None
    suspended_at: datetime | None
    deadline: datetime | None
    signals: list[Signal]


def suspend_info(queue: QueueKeys, job_id: str) -> Op[SuspendInfo | None]:
    """Why and since when a job is suspended; None if it is not."""
    names: Sequence[JobField] = ("state", "suspendReason", "suspendedAt", "suspendTimeout", "signals")
    state, reason, since, limit, signals = yield from ask(job_hash.get_some(queue, job_id, names, list))
    if state is None:
        raise missing(queue, job_id)
    if state != JobState.SUSPENDED:
        return None
    deadline = moment(str(number(since) + number(limit))) if number(since) and number(limit) else None
    return SuspendInfo(readable(reason or "") or None, moment(since), deadline, _signals(signals))


def signal(queue: QueueKeys, job_id: str, name: str, data: JsonLike, now_ms: int) -> Op[bool]:
    """Resume a suspended job; ``None`` means no data."""
    named("signal", name)
    text = "" if data is None else encode(data, where=f"data of signal {name}")
    return (yield from ask(job_calls.signal(queue, job_id, name, text, now_ms)))


def _signals(text: str | None) -> list[Signal]:
    entries, found = parsed(text), []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        stored, at = entry.get("data"), entry.get("receivedAt")
        data = read_progress(stored) if isinstance(stored, str) else stored
        found.append(Signal(str(entry.get("name", "")), data, moment(str(at)) if at else None))
    return found
