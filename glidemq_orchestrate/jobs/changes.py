"""Changes a job: its priority, delay or data; retries, revokes, removes it; signals a suspended one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate.errors import JobStateConflict
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.values import named, whole
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.history import noted
from glidemq_orchestrate.jobs.job_hash import JobField, missing
from glidemq_orchestrate.jobs.options import MAX_PRIORITY
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, command, function
from glidemq_orchestrate.wire.codec import JsonLike, encode, readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, parsed, read_progress

MAX_JOBS: Final = 25
"""How many jobs one call removes or retries at most: none may keep the server busy for more than 5 ms."""


def retry(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Run a failed job again, immediately."""
    (word,) = yield from ask(retry_jobs(queue, [job_id], now_ms))
    if word == "missing":
        raise missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "failed", "is a node of a flow. Fix: retry the flow")
    if word != "retried":
        raise JobStateConflict(job_id, word, f"is {word}, not failed")


def change_priority(queue: QueueKeys, job_id: str, priority: int, now_ms: int) -> Op[None]:
    """Change the priority of a job."""
    whole("priority", priority, 0, MAX_PRIORITY)
    change = _change("glidemq_changePriority", queue, job_id, (job_id, priority, GROUP))
    yield from noted(queue, job_id, change, now_ms, "priority-changed", str(priority))


def change_delay(queue: QueueKeys, job_id: str, delay: timedelta, now_ms: int) -> Op[None]:
    """Change the delay of a job."""
    words = (job_id, milliseconds(delay), now_ms, GROUP)
    change = _change("glidemq_changeDelay", queue, job_id, words)
    yield from noted(queue, job_id, change, now_ms, "delay-changed", f"{delay.total_seconds():g} s")


def promote(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Make a delayed job ready."""
    change = _change("glidemq_promoteJob", queue, job_id, (job_id,))
    yield from noted(queue, job_id, change, now_ms, "promoted", "")


def update(queue: QueueKeys, job_id: str, field: str, value: JsonLike, now_ms: int) -> Op[None]:
    """Change data or progress."""
    text = encode(value, where=f"{field} of job {job_id}")
    yield from ask(update_job(queue, job_id, field, text, now_ms))


def report_tokens(queue: QueueKeys, job_id: str, tokens: int, now_ms: int) -> Op[None]:
    """Report the number of tokens that a job used."""
    whole("tokens", tokens, 0)
    yield from ask(update_job(queue, job_id, "tpmTokens", tokens, now_ms))


Removal = tuple[list[str], list[tuple[str, str]]]


def remove_jobs(queue: QueueKeys, jobs: Iterable[tuple[str, str]], event: str, now_ms: int) -> Call[Removal]:
    """Delete jobs by pairs of job id and stream entry (empty if unknown).

    Returns a word for each job, and pairs of a removed job and a job in another queue that waits for it.
    """
    removed = list(jobs)

    def decode(reply: Any) -> Removal:
        words, elsewhere = reply
        pairs = [(member, parent) for member, parent in replies.rows(2)(elsewhere)]
        return replies.texts_of(len(removed))(words), pairs

    args: list[Word] = [now_ms, event, *chain.from_iterable(removed)]
    return function("gmo_remove_jobs", [queue.key("id")], args, decode)


def retry_jobs(queue: QueueKeys, job_ids: Sequence[str], now_ms: int) -> Call[list[str]]:
    """Run failed jobs again; returns a word for each."""
    return function("gmo_retry_jobs", [queue.key("id")], (now_ms, *job_ids), replies.texts_of(len(job_ids)))


def revoke_job(queue: QueueKeys, job_id: str, now_ms: int) -> Call[tuple[str, str]]:
    """Fail a job that is not running, flag a running one; returns a word and the flow to advance."""

    def decode(reply: Any) -> tuple[str, str]:
        word, flow_id = replies.texts(reply)
        return word, flow_id

    return function("gmo_revoke_job", [queue.job(job_id)], (now_ms, job_id), decode)


def take_from_worker(queue: QueueKeys, job_id: str, grace_ms: int, now_ms: int) -> Call[tuple[str, str]]:
    """Take a running job from its worker, at once or after a time; returns a word and the worker."""

    def decode(reply: Any) -> tuple[str, str]:
        word, worker = replies.texts(reply)
        return word, worker

    return function("gmo_take_back", [queue.job(job_id)], (now_ms, job_id, GROUP, grace_ms), decode)


def take_back(queue: QueueKeys, job_id: str, grace: timedelta, now_ms: int) -> Op[str]:
    """Take a running job from its worker; returns the worker."""
    word, worker = yield from ask(take_from_worker(queue, job_id, milliseconds(grace), now_ms))
    if word == "foreign":
        raise JobStateConflict(job_id, "active", "is not held by a worker of this package")
    if word not in ("taken", "asked"):
        raise JobStateConflict(job_id, word, f"is {word}, not running")
    return worker


def update_job(queue: QueueKeys, job_id: str, field: str, value: str | int, now_ms: int) -> Call[int]:
    """Change data, progress or reported tokens of an existing job. Idempotent."""
    return function("gmo_update_job", [queue.job(job_id)], (now_ms, job_id, field, value), replies.integer)


_REASONS = {
    "error:invalid_state": "is in a state that does not allow this",
    "error:not_delayed": "is not delayed",
    "error:not_in_stream": "is already in the priority or LIFO list, where its place is fixed",
    "error:not_in_scheduled": "has just become ready",
    "error:not_active": "is not active",
    "error:no_group": "has no ordering key",
}


def drop_entry(queue: QueueKeys, entry_id: str) -> list[Call[None]]:
    """Acknowledge and delete an entry of the stream. Idempotent."""
    stream = queue.key("stream")
    return [
        command("XACK", stream, GROUP, entry_id, decode=replies.anything),
        command("XDEL", stream, entry_id, decode=replies.anything),
    ]


def _change(name: str, queue: QueueKeys, job_id: str, args: tuple[Word, ...]) -> Call[None]:
    """A call that changes one job; the error words of its reply are raised as errors."""
    keys = [queue.job(job_id), *queue.keys("stream", "scheduled", "events")]

    def decode(reply: Any) -> None:
        if reply == "error:not_found":
            raise missing(queue, job_id)
        if str(reply).startswith("error:"):
            raise JobStateConflict(job_id, str(reply)[6:], _REASONS.get(reply, "cannot be changed"))

    return function(name, keys, args, decode)


def complete_child(queue: QueueKeys, job_id: str, member: str) -> Call[int]:
    """Release a job from one of its dependencies or gates. Idempotent."""
    keys = [queue.deps(job_id), queue.job(job_id), queue.key("stream"), queue.key("events")]
    return function("glidemq_completeChild", keys, (member, job_id), replies.integer, repeatable=True)


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that resumed a suspended job: its name, its data and when it arrived."""

    name: str
    data: Any
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
    keys = [queue.job(job_id), *queue.keys("stream", "events", "suspended"), queue.signals(job_id)]
    words = (job_id, name, text, now_ms)
    reply = yield from ask(function("glidemq_signal", keys, words, replies.text))
    return reply == "ok"


def _signals(text: str | None) -> list[Signal]:
    entries, found = parsed(text), []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        stored, at = entry.get("data"), entry.get("receivedAt")
        data = read_progress(stored) if isinstance(stored, str) else stored
        found.append(Signal(str(entry.get("name", "")), data, moment(str(at)) if at else None))
    return found
