"""Operations on one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from glidemq_orchestrate._ops import logs as job_logs
from glidemq_orchestrate._ops.flows import staged as flow_ops
from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate._protocol.flows.claim import claimed
from glidemq_orchestrate._protocol.flows.nodes import end_of_stub
from glidemq_orchestrate._protocol.flows.portable import node_jobs
from glidemq_orchestrate._protocol.flows.portable import record as records
from glidemq_orchestrate._protocol.flows.portable.gates import complete_child, is_gate
from glidemq_orchestrate._protocol.queue import admin, changes, reads
from glidemq_orchestrate.errors import (
    ChildrenFailed,
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    JobStateConflict,
    PayloadTooLarge,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.bounds import lasting, milliseconds, named, whole
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.options import MAX_PRIORITY, JobRef
from glidemq_orchestrate.jobs.run_options import RunOptions
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, Json, JsonLike, decode, encode, readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number, parsed, read_progress

PAGE: Final = 1000
NEVER: Final = 9_999_999_999_999
NODE: Final = "node"
MAX_PARTS: Final = 900
Revoked = Literal["revoked", "flagged"]


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that woke a suspended job: its name, its data, when it was received."""

    name: str
    data: Json
    received_at: datetime | None


@dataclass(frozen=True, slots=True)
class SuspendInfo:
    """Why a job is suspended, since when, until when (None: for ever), and the signals it has received."""

    reason: str | None
    suspended_at: datetime | None
    deadline: datetime | None
    signals: list[Signal]


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One entry of a job's output; ``id`` is the position after which reading continues."""

    id: str
    fields: Mapping[str, str]


def retry(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Run a failed job again, immediately."""
    (word,) = yield from ask(changes.retry_jobs(queue, [job_id], now_ms))
    if word == "missing":
        raise _missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "failed", "is a node of a flow: retry the flow")
    if word != "retried":
        raise JobStateConflict(job_id, word, f"is {word}, not failed")


def revoke(queue: QueueKeys, job_id: str, clock: Clock) -> Op[Revoked]:
    """End a job that does not run yet; flag a running one."""
    word, flow_id = yield from ask(changes.revoke_job(queue, job_id, clock.now_ms()))
    if flow_id:
        ref = yield from flow_ops.find(queue.prefix, flow_id)
        yield from flow_ops.advance(ref, clock)
    if word == "left":
        yield from _drop_entry(queue, job_id)
    if word in ("revoked", "left"):
        return "revoked"
    if word == "flagged":
        return "flagged"
    raise JobStateConflict(job_id, word, f"is {word} already")


def remove(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Delete a job with everything that belongs to it."""
    (word,) = yield from remove_some(queue, [(job_id, "")], "removed", now_ms)
    if word == "missing":
        raise _missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "flow", "is a node of a flow that has not ended: cancel the flow")


def remove_some(queue: QueueKeys, jobs: Sequence[tuple[str, str]], event: str, now_ms: int) -> Op[list[str]]:
    """Delete at most a hundred jobs, given with their stream entries; returns a word for each."""
    words, elsewhere = yield from ask(changes.remove_jobs(queue, jobs, event, now_ms))
    if nodes := [job_id for (job_id, _), word in zip(jobs, words, strict=True) if word == NODE]:
        removed = yield from _remove_nodes(queue, nodes, event, now_ms)
        words = [removed.get(job_id, word) for (job_id, _), word in zip(jobs, words, strict=True)]
    for member, parent, parent_id in _foreign(elsewhere):
        # Some glidemq libraries would create a hash for a parent that was removed.
        if (yield from ask(changes.job_exists(parent, parent_id))):
            yield from ask(complete_child(parent, parent_id, member))
    for (job_id, _), word in zip(jobs, words, strict=True):
        if word == "left":
            yield from _drop_entry(queue, job_id)
    return words


def _remove_nodes(queue: QueueKeys, nodes: Sequence[str], event: str, now_ms: int) -> Op[dict[str, str]]:
    """Delete nodes of portable flows, unless the flow has not ended; returns a word for each."""
    flows = dict(
        zip(nodes, (yield from ask_all([node_jobs.owner(queue, one) for one in nodes])), strict=True)
    )
    marks: dict[str, str] = {}
    for flow_id in {*flows.values()}:
        home = yield from ask(claimed(queue.prefix, flow_id))
        marks[flow_id] = "-"
        if home is not None:
            record = yield from ask(records.record(QueueKeys(queue.prefix, home), flow_id))
            marks[flow_id] = "!" if record.state.is_terminal else ""
    ended = [(job_id, marks[flow_id]) for job_id, flow_id in flows.items() if marks[flow_id]]
    words = dict.fromkeys(nodes, "flow")
    if ended:
        found, _ = yield from ask(changes.remove_jobs(queue, ended, event, now_ms))
        words |= {job_id: word for (job_id, _), word in zip(ended, found, strict=True)}
    return words


def change_priority(queue: QueueKeys, job_id: str, priority: int) -> Op[None]:
    """Change the priority of a job."""
    whole("priority", priority, 0, MAX_PRIORITY)
    yield from ask(admin.change_priority(queue, job_id, priority))


def change_delay(queue: QueueKeys, job_id: str, delay: timedelta, now_ms: int) -> Op[None]:
    """Change the delay of a job."""
    lasting("delay", delay)
    yield from ask(admin.change_delay(queue, job_id, milliseconds(delay), now_ms))


def promote(queue: QueueKeys, job_id: str) -> Op[None]:
    """Make a delayed job ready."""
    yield from ask(admin.promote_job(queue, job_id))


def add_log(queue: QueueKeys, job_id: str, line: str) -> Op[None]:
    """Append a log line to an existing job."""
    _check_text("log line", line)
    yield from ask(changes.add_log(queue, job_id, line))


def logs(queue: QueueKeys, job_id: str, first: int, limit: int) -> Op[JobLogs]:
    """Read log lines."""
    if limit < 0:
        raise ConfigurationError("limit must not be negative")
    (found,) = yield from job_logs.read([job_logs.LogRange(queue, job_id, first, limit)])
    return found


def update(queue: QueueKeys, job_id: str, field: str, value: JsonLike, now_ms: int) -> Op[None]:
    """Change data or progress."""
    text = encode(value, where=f"{field} of job {job_id}")
    yield from ask(changes.update_job(queue, job_id, field, text, now_ms))


def report_tokens(queue: QueueKeys, job_id: str, tokens: int, now_ms: int) -> Op[None]:
    """Report how many tokens a job used."""
    whole("tokens", tokens, 0)
    yield from ask(changes.update_job(queue, job_id, "tpmTokens", tokens, now_ms))


def children_values(queue: QueueKeys, job_id: str) -> Op[dict[JobRef, Json]]:
    """The results of the jobs that a job waited for.

    Raises:
        ChildrenFailed: One has ended without a result, other than a node on which a node depends.
    """
    found = yield from ask(changes.members(queue.deps(job_id)))
    places = [place for member in found if not is_gate(member) for place in _place(member)]
    names: tuple[JobField, ...] = ("state", "returnvalue", "failedReason", "gmo:removed", "gmo:flow", "opts")
    rows = yield from ask_all([job_hash.get_some(keys, child, names, list) for keys, child in places])
    values: dict[JobRef, Json] = {}
    failed: dict[JobRef, str] = {}
    for (keys, child), (state, result, reason, stub, flow, options) in zip(places, rows, strict=True):
        ref = JobRef(keys.queue, child)
        if state == JobState.COMPLETED:
            values[ref] = decode(result, where=f"result of job {child}")
        elif state is None and end_of_stub(stub or "") in ("", JobState.COMPLETED):
            failed[ref] = "it was removed"
        elif state == JobState.FAILED and not flow and not RunOptions.from_wire(options or "").portable:
            failed[ref] = readable(reason or "") or "it has failed"
    if failed:
        raise ChildrenFailed(job_id, failed, values)
    return values


def parents(queue: QueueKeys, job_id: str) -> Op[list[JobRef]]:
    """The jobs that wait for a job."""
    fields = yield from ask(
        job_hash.get_some(
            queue, job_id, ("parentId", "parentQueue", "parentIds", "parentQueues", "state"), list
        )
    )
    if fields[4] is None:
        raise _missing(queue, job_id)
    found = yield from ask(changes.members(queue.parents(job_id)))
    refs = [JobRef(keys.queue, parent) for member in found for keys, parent in _place(member)]
    single = [(fields[1], fields[0])] if fields[0] and fields[1] else []
    for parent_queue, parent_id in [*single, *zip(_texts(fields[3]), _texts(fields[2]), strict=False)]:
        refs.append(JobRef(parent_queue, parent_id))
    return list(dict.fromkeys(refs))


def suspend_info(queue: QueueKeys, job_id: str) -> Op[SuspendInfo | None]:
    """Why and since when a job is suspended; None if it is not."""
    names: Sequence[JobField] = ("state", "suspendReason", "suspendedAt", "suspendTimeout", "signals")
    state, reason, since, limit, signals = yield from ask(job_hash.get_some(queue, job_id, names, list))
    if state is None:
        raise _missing(queue, job_id)
    if state != JobState.SUSPENDED:
        return None
    deadline = moment(str(number(since) + number(limit))) if number(since) and number(limit) else None
    return SuspendInfo(readable(reason or "") or None, moment(since), deadline, _signals(signals))


def signal(queue: QueueKeys, job_id: str, name: str, data: JsonLike, now_ms: int) -> Op[bool]:
    """Wake a suspended job; data of None is no data."""
    named("signal", name)
    text = "" if data is None else encode(data, where=f"data of signal {name}")
    return (yield from ask(admin.signal(queue, job_id, name, text, now_ms)))


def add_output(queue: QueueKeys, job_id: str, fields: Mapping[str, str]) -> Op[str]:
    """Append to the output of a job."""
    check_output(fields)
    return (yield from ask(changes.add_output(queue, job_id, fields)))


def check_output(fields: Mapping[str, str]) -> None:
    """Refuse what cannot be one entry of an output.

    Raises:
        InvalidJob, PayloadTooLarge: That is so.
    """
    if not fields or not all(isinstance(part, str) for pair in fields.items() for part in pair):
        raise InvalidJob("output must be texts by name, at least one")
    if len(fields) > MAX_PARTS:
        raise InvalidJob(f"one entry of an output has at most {MAX_PARTS} parts, got {len(fields)}")
    _check_text("output", "".join(part for pair in fields.items() for part in pair))


def read_output(
    queue: QueueKeys, job_id: str, after: str | None, limit: int, wait_ms: int
) -> Op[list[OutputChunk]]:
    """Read the output of a job after a position."""
    if limit < 1:
        raise ConfigurationError("limit must be at least 1")
    call = changes.read_output(queue, job_id, after or "0-0", limit, wait_ms if wait_ms > 0 else None)
    return [OutputChunk(entry_id, fields) for entry_id, fields in (yield from ask(call))]


def _drop_entry(queue: QueueKeys, job_id: str) -> Op[None]:
    """Find and delete the stream entry of a job that is far from its expected place, a page at a time."""
    start = "-"
    while True:
        entries = yield from ask(reads.stream_page(queue, start, PAGE))
        for entry_id, found in entries:
            if found == job_id:
                yield from ask_all(admin.drop_entry(queue, entry_id))
                return
        if len(entries) < PAGE:
            return
        start = f"({entries[-1][0]}"


def _foreign(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, QueueKeys, str]]:
    return [(member, keys, job_id) for member, ref in pairs for keys, job_id in _place(ref)]


def _place(member: str) -> list[tuple[QueueKeys, str]]:
    """Queue and id in ``prefix:{queue}:id``; empty if it is something else."""
    base, _, job_id = member.rpartition(":")
    prefix, _, rest = base.rpartition(":{")
    return [(QueueKeys(prefix, rest[:-1]), job_id)] if prefix and rest.endswith("}") and job_id else []


def _texts(text: str | None) -> list[str]:
    found = parsed(text)
    return [str(part) for part in found] if isinstance(found, list) else []


def _signals(text: str | None) -> list[Signal]:
    entries, found = parsed(text), []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        stored, at = entry.get("data"), entry.get("receivedAt")
        data = read_progress(stored) if isinstance(stored, str) else stored
        found.append(Signal(str(entry.get("name", "")), data, moment(str(at)) if at else None))
    return found


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidJob(f"{what} must be a text, got {type(text).__name__}")
    if len(text.encode(errors="surrogatepass")) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"{what} is longer than {MAX_PAYLOAD_BYTES:,} bytes", where=what)


def _missing(queue: QueueKeys, job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id} in queue {queue.queue}")
