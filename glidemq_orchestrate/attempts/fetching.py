"""Fetches jobs and reports outcomes in one round trip, and waits for the next jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_orchestrate.attempts import exchange as wire
from glidemq_orchestrate.attempts.exchange import Answer, Held, Kind, Outcome, Request
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire import wait
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

MAX_NAMED: Final = 3


# Events after which a job may be ready for an idle worker; all others concern jobs that already run.
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

    The newest entry of each, and the newest relevant event; '' for none. The absence of any entry is relevant
    too: a producer may have switched events off.
    """

    stream: str
    events: str
    ready: str

    def beyond(self, positions: tuple[str, str]) -> tuple[str, str]:
        """The positions after these entries."""
        stream, events = positions
        return max(stream, self.stream, key=_place), max(events, self.events, key=_place)

    def matters(self, known: tuple[str, str]) -> bool:
        """Whether there is a relevant entry after the positions."""
        stream, events = known
        is_silent = not self.stream and not self.events
        return is_silent or _place(self.stream) > _place(stream) or _place(self.ready) > _place(events)


def _place(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds or -1), int(number or 0)


def exchange(
    queue: QueueKeys, consumer: str, request: Request, clock: Clock, *, marked: bool = False
) -> Op[Answer]:
    """Report outcomes and fetch jobs. Reads results of dependencies that did not fit into the reply.

    With ``marked``, the answer contains the replication id of the server that accepted the outcomes.
    """
    call = wire.finish_and_fetch(queue, consumer, request, clock.now_ms())
    if marked and request.outcomes:
        both: list[Call[Any]] = [call, wait.mark_queue(queue)]
        accepted, history = yield from ask_all(both)
        answer: Answer = replace(accepted, history=history)
    else:
        answer = yield from ask(call)
    early: list[Attempt] = []
    for attempt in answer.begun:
        if attempt.inputs is None:
            found = yield from backend.inputs(queue, attempt)
            attempt.inputs = found.texts
            if found.removed:
                attempt.unreadable = attempt.unreadable or _incomplete(found.removed)
            elif found.has_open and (yield from backend.hold(queue, attempt)):
                early.append(attempt)
    if early:
        waiting = Request([Outcome(one, Kind.CHILDREN, second=wire.UNBEGUN) for one in early], 0, "")
        yield from ask(wire.finish_and_fetch(queue, consumer, waiting, clock.now_ms()))
        answer = replace(answer, begun=[attempt for attempt in answer.begun if attempt not in early])
    return answer


def _incomplete(removed: Sequence[str]) -> str:
    """The reason not to run a node with missing inputs."""
    names = ", ".join(sorted({ref.rpartition(":")[2] for ref in removed})[:MAX_NAMED])
    more = f" and {len(removed) - MAX_NAMED} more" if len(removed) > MAX_NAMED else ""
    return (
        f"its inputs are incomplete: the result of job {names}{more} was removed. "
        "Fix: retry the flow, which reruns the removed nodes"
    )


def carry(queue: QueueKeys, outcomes: Sequence[Outcome], verdicts: Sequence[str], clock: Clock) -> Op[None]:
    """Notify dependents of ended nodes in other slots, since the server cannot."""
    ended = [
        (outcome.attempt, outcome.kind, verdict)
        for outcome, verdict in zip(outcomes, verdicts, strict=True)
        if outcome.attempt.options.portable
    ]
    done = [attempt.job_id for attempt, kind, verdict in ended if verdict == "ok" and kind is Kind.DONE]
    # The server notifies neither dependents of a failure nor a large number of dependents.
    moved = {
        attempt.stored_flow
        for attempt, _, verdict in ended
        if verdict == "failed" or (verdict == "ok" and attempt.options.is_wide)
    }
    yield from backend.carry(queue, done, moved, clock)


def listen(queue: QueueKeys, positions: tuple[str, str], block_ms: int, held: Held) -> Op[News]:
    """Wait for entries of the stream or the events after the positions, and note the relevant ones.

    While the queue is at its concurrency limit, the end of any job is relevant.
    """
    found = yield from ask(wire.wake(queue, *positions, block_ms))
    entries = found.get(queue.key("stream"), [])
    events = found.get(queue.key("events"), [])
    ready = [
        entry_id for entry_id, fields in events if held is Held.CONCURRENCY or fields.get("event") in READY
    ]
    return News(*(ids[-1] if ids else "" for ids in ([e for e, _ in entries], [e for e, _ in events], ready)))


def settle(queue: QueueKeys, position: str, block_ms: int) -> Op[bool]:
    """Let events accumulate while other workers are busy. Returns True as soon as the stream gets a job."""
    found = yield from ask(wire.wake(queue, position, "", block_ms))
    return bool(found)
