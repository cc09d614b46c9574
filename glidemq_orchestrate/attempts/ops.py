"""What a worker reports about the jobs it holds, and the upkeep of a queue that all workers share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_orchestrate import registry
from glidemq_orchestrate.attempts import dead_letters as letters
from glidemq_orchestrate.attempts import exchange as wire
from glidemq_orchestrate.attempts import supervision, workers
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.exchange import Answer, Held, Kind, Outcome, Request
from glidemq_orchestrate.attempts.workers import SILENT_MS, ReclaimedJobs
from glidemq_orchestrate.errors import LeaseLost, ProtocolError
from glidemq_orchestrate.flows import deadlines, index, running
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.wire import confirmation as confirm
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.isolated import isolated
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

TODO_PER_TICK: Final = 10
EXPIRING_SLICES: Final = 20
CLEANUP_SLICES: Final = 40
MAX_NAMED: Final = 3
_BEATS: Final = 500


# Events after which a job may be ready for an idle worker; all others are about jobs that others run.
READY: Final = frozenset(
    {
        "added",
        "promoted",
        "active",
        "resumed",
        "retrying",
        "stalled",
        "retried",
        "delay-changed",
        "priority-changed",
        "group-rate-limited",
        "limits.changed",
        "scheduler.changed",
    }
)


@dataclass(frozen=True, slots=True)
class News:
    """The new entries of the stream and the events of a queue.

    The newest entry of each, and the newest event that matters.
    Ids are '' for none. No entry at all matters too: a producer may have events switched off.
    """

    stream: str
    events: str
    ready: str

    def beyond(self, positions: tuple[str, str]) -> tuple[str, str]:
        """The positions after these entries."""
        stream, events = positions
        return max(stream, self.stream, key=_place), max(events, self.events, key=_place)

    def matters(self, known: tuple[str, str]) -> bool:
        """Whether an entry that matters came after the positions."""
        stream, events = known
        is_silent = not self.stream and not self.events
        return is_silent or _place(self.stream) > _place(stream) or _place(self.ready) > _place(events)


def _place(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds or -1), int(number or 0)


def open_queues(queues: Sequence[QueueKeys]) -> Op[None]:
    """Create the workers' group of each queue if it is missing."""
    for reply in (yield from ask_each([registry.create_group(queue) for queue in queues])):
        if isinstance(reply, Exception) and "BUSYGROUP" not in str(reply):
            raise reply


def announce(
    queues: Sequence[QueueKeys], worker_id: str, description: dict[str, Any], ttl_ms: int, now_ms: int
) -> Op[None]:
    """Register the worker on every queue as alive for another ``ttl_ms``."""
    text = json.dumps(description, separators=(",", ":"))
    calls: list[Call[None]] = []
    for queue in queues:
        calls.append(registry.register_worker(queue, worker_id, text, ttl_ms))
        calls.append(registry.announce_worker(queue, worker_id, now_ms + ttl_ms))
    yield from ask_all(calls)


def withdraw(queues: Sequence[QueueKeys], worker_id: str) -> Op[None]:
    """Unregister the worker from every queue; it no longer holds a job.

    Its consumer stays if entries are pending: reclaiming makes it the owner of entries whose jobs other
    workers run, and an entry deleted with its consumer could never be taken over from a worker that dies.
    """
    calls: list[Call[Any]] = []
    for queue in queues:
        calls.append(registry.forget_worker(queue, worker_id))
        calls.append(registry.withdraw_worker(queue, worker_id))
        calls.append(registry.has_pending(queue, worker_id))
    replies = yield from ask_each(calls)
    free = [queue for queue, pending in zip(queues, replies[2::3], strict=True) if pending is False]
    yield from ask_each([registry.drop_consumer(queue, worker_id) for queue in free])


def exchange(
    queue: QueueKeys, consumer: str, request: Request, clock: Clock, *, marked: bool = False
) -> Op[Answer]:
    """Report outcomes and fetch jobs; reads the dependencies' results that did not fit into the reply.

    With ``marked``, the answer has the replication id of the server that accepted the outcomes.
    """
    call = wire.finish_and_fetch(queue, consumer, request, clock.now_ms())
    if marked and request.outcomes:
        both: list[Call[Any]] = [call, confirm.mark_queue(queue)]
        accepted, history = yield from ask_all(both)
        answer: Answer = replace(accepted, history=history)
    else:
        answer = yield from ask(call)
    early: list[Attempt] = []
    for attempt in answer.begun:
        if attempt.inputs is None:
            found = yield from running.inputs(queue, attempt)
            attempt.inputs = found.texts
            if found.removed:
                attempt.unreadable = attempt.unreadable or _incomplete(found.removed)
            elif found.has_open and (yield from running.hold(queue, attempt)):
                early.append(attempt)
    if early:
        waiting = Request([Outcome(one, Kind.CHILDREN, second=wire.UNBEGUN) for one in early], 0, "")
        yield from ask(wire.finish_and_fetch(queue, consumer, waiting, clock.now_ms()))
        answer = replace(answer, begun=[attempt for attempt in answer.begun if attempt not in early])
    return answer


def _incomplete(removed: Sequence[str]) -> str:
    """Why a node whose inputs are not all there is not run."""
    names = ", ".join(sorted({ref.rpartition(":")[2] for ref in removed})[:MAX_NAMED])
    more = f" and {len(removed) - MAX_NAMED} more" if len(removed) > MAX_NAMED else ""
    return (
        f"its inputs are incomplete: the result of job {names}{more} was removed. "
        "Retry the flow: that runs what was removed again"
    )


def stands(queue: QueueKeys, outcome: Outcome, verdict: str) -> Op[bool]:
    """Whether a verdict still holds at a server that refuses to repeat it, since it took over from another.

    It does unless the job has not ended by this attempt: then the server had lost it, and another one ran.
    """
    ends = {"ok": "completed", "failed": "failed"}
    if outcome.kind not in (Kind.DONE, Kind.SKIP, Kind.FAIL) or verdict not in ends:
        return True  # the job goes on in either case
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn")
    attempt = outcome.attempt
    state, token, started = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if state is None:  # it was removed after its end
        return True
    return (state, token, started) == (ends[verdict], attempt.token, attempt.processed_on)


def check_owner(queue: QueueKeys, attempt: Attempt) -> Op[None]:
    """Check that an attempt still owns its job, and that the job was not revoked.

    Raises:
        LeaseLost: It does not, or was.
    """
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn", "revoked")
    state, token, started, revoked = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if (state, token, started) != ("active", attempt.token, attempt.processed_on):
        now = f"is {readable(state)}" if state else "was removed"
        raise LeaseLost(f"this attempt no longer owns job {attempt.job_id}, which {now}")
    if revoked == "1":
        raise LeaseLost(f"job {attempt.job_id} was cancelled")


def carry(queue: QueueKeys, outcomes: Sequence[Outcome], verdicts: Sequence[str], clock: Clock) -> Op[None]:
    """Notify the dependents of ended nodes in other slots, which the server cannot do."""
    ended = [
        (outcome.attempt, outcome.kind, verdict)
        for outcome, verdict in zip(outcomes, verdicts, strict=True)
        if outcome.attempt.options.portable
    ]
    done = [attempt.job_id for attempt, kind, verdict in ended if verdict == "ok" and kind is Kind.DONE]
    # The server notifies neither the dependents of a failure nor a large number of dependents.
    moved = {
        attempt.stored_flow
        for attempt, _, verdict in ended
        if verdict == "failed" or (verdict == "ok" and attempt.options.is_wide)
    }
    yield from running.carry(queue, done, moved, clock)


def listen(queue: QueueKeys, positions: tuple[str, str], block_ms: int, held: Held) -> Op[News]:
    """Wait for entries of the stream or the events after the positions, and note which of them matter.

    While the queue holds jobs back because too many run, the end of any job matters.
    """
    found = yield from ask(wire.wake(queue, *positions, block_ms))
    entries = found.get(queue.key("stream"), [])
    events = found.get(queue.key("events"), [])
    ready = [
        entry_id for entry_id, fields in events if held is Held.CONCURRENCY or fields.get("event") in READY
    ]
    return News(*(ids[-1] if ids else "" for ids in ([e for e, _ in entries], [e for e, _ in events], ready)))


def settle(queue: QueueKeys, position: str, block_ms: int) -> Op[bool]:
    """Let events gather while others are busy. Returns whether the stream got a job, as soon as it does."""
    found = yield from ask(wire.wake(queue, position, "", block_ms))
    return bool(found)


def heartbeat(queue: QueueKeys, held: Sequence[Attempt], now_ms: int) -> Op[list[int]]:
    """Renew the leases of one queue: 1 renewed, 0 asked to stop, -1 lost."""
    pages = [held[first : first + _BEATS] for first in range(0, len(held), _BEATS)]
    kept = yield from ask_all([wire.heartbeat(queue, page, now_ms) for page in pages])
    return [beat for page in kept for beat in page]


def renew_all(queue: QueueKeys, group: str, worker_id: str, clock: Clock) -> Op[int]:
    """Renew all leases that a worker holds in a queue, for itself or a subscription; returns how many."""
    total, goes_on = 0, ""
    while True:
        count, goes_on = yield from ask(workers.renew(queue, group, worker_id, goes_on, clock.now_ms()))
        total += count
        if not goes_on:
            return total


def begin(queue: QueueKeys, consumer: str, attempt: Attempt, clock: Clock) -> Op[bool]:
    """Tell the server that the handler of an attempt begins. Returns whether it still owns its job."""
    request = Request([Outcome(attempt, Kind.BEGUN)], 0, "")
    answer = yield from ask(wire.finish_and_fetch(queue, consumer, request, clock.now_ms()))
    return answer.verdicts == ["ok"]


def upkeep(queues: Sequence[QueueKeys], clock: Clock) -> Op[int]:
    """Sweep, clean up, continue unsettled flows, and do what is due: delays, limits, timeouts, deadlines.

    Returns when something is due next, or -1.
    """
    names = ", ".join(queue.queue for queue in queues)
    yield from isolated(index.sweep(queues, clock), f"the sweep of {names}")
    yield from isolated(clean_up(queues, clock), f"the cleanup of {names}")
    todo = yield from ask_all([index.unsettled_flows(queue, TODO_PER_TICK) for queue in queues])
    for queue, flow_ids in zip(queues, todo, strict=True):
        for flow_id in flow_ids:
            advancing = running.advance_at(queue, flow_id, clock)
            yield from isolated(advancing, f"flow {flow_id} of queue {queue.queue}")
    due = yield from expire(queues, clock)
    return min((at for at in due if at >= 0), default=-1)


def expire(queues: Sequence[QueueKeys], clock: Clock) -> Op[list[int]]:
    """Do what is due in slices. Returns when something is due next in each queue, or -1."""
    replies: list[tuple[int, int]] = []
    for _ in range(EXPIRING_SLICES):
        replies = yield from ask_all([deadlines.expire_due(queue, clock.now_ms()) for queue in queues])
        if not any(count for count, _ in replies):
            break
    return [at for _, at in replies]


def clean_up(queues: Sequence[QueueKeys], clock: Clock) -> Op[None]:
    """Remove what the queues no longer need, at most some slices of each. Repeatable."""
    busy = list(queues)
    for _ in range(CLEANUP_SLICES):
        replies = yield from ask_all([supervision.cleanup(queue, clock.now_ms()) for queue in busy])
        busy = [queue for queue, has_more in zip(busy, replies, strict=True) if has_more]
        if not busy:
            return


def reclaim(
    queues: Sequence[QueueKeys], consumer: str, *, lock_ms: int, max_stalled: int, clock: Clock
) -> Op[list[tuple[QueueKeys, ReclaimedJobs]]]:
    """Take back the jobs of lost workers, forget the workers, and write the dead letters of failed jobs.

    Flows that fail as a result are advanced by the next upkeep. Returns what was taken back from whom.
    """
    now_ms, silent_ms = clock.now_ms(), max(SILENT_MS, 2 * lock_ms)
    calls: list[Call[Any]] = []
    for queue in queues:
        calls.append(
            workers.reclaim(queue, consumer, lock_ms=lock_ms, max_stalled=max_stalled, now_ms=now_ms)
        )
        calls.append(workers.forget_workers(queue, GROUP, silent_ms, now_ms))
        calls.append(letters.count(queue))
    replies = yield from ask_each(calls)
    for reply in replies:
        if isinstance(reply, ProtocolError) and "NOGROUP" in str(reply):
            continue
        if isinstance(reply, Exception):
            raise reply
    noted = [queue for queue, count in zip(queues, replies[2::3], strict=True) if count]
    yield from write_noted(noted, clock)
    found = zip(queues, replies[::3], strict=True)
    return [(queue, worker) for queue, lost in found if isinstance(lost, list) for worker in lost]
