"""The exchange of a worker with the server: outcomes, new jobs, and renewals of leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import LeaseLost, ProtocolError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, function, parts
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.confirmation import mark_queue
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

# The server accepts 100 of each, but a call must take less than 5 ms there, and shorter calls overlap better
# with the worker's own work.
MAX_OUTCOMES: Final = 50
MAX_NODES: Final = 16  # the end of a node releases other nodes
MAX_WANTED: Final = 64
APPENDED: Final = "a"
"""Begins the line of an item that an element adds to its array, in an outcome of elements."""
KEPT: Final = "k"
"""The last line of an early report: the next element of the slice still runs, and keeps the lease."""
UNBEGUN: Final = 1
"""The second number of ``LATER``: no handler was called, so the queue timeout of a node continues."""


class Kind(StrEnum):
    """The kind of an outcome, which decides what its text and its two numbers mean.

    ========  =======================  ======================  =============================================
    kind      text                     first                   second
    ========  =======================  ======================  =============================================
    done      result as JSON
    skip      reason
    fail      reason                   attempts allowed        backoff in ms
    grouped   failure group, line end, reason; otherwise as ``fail``: a ``FAIL`` with a ``group``
    later     new data, '' to keep it  ms since the epoch      ``UNBEGUN``, if no handler was called
    children                                                   ``UNBEGUN``, to wait for its dependencies, not
                                                               for its child jobs
    suspend   reason                   timeout in ms; 0: none
    back
    elements  a line for each element  of an early report, or
                                       after it: the position
                                       of the first line + 1
    ========  =======================  ======================  =============================================
    """

    DONE = "done"
    SKIP = "skip"
    FAIL = "fail"
    LATER = "later"
    CHILDREN = "children"
    SUSPEND = "suspend"
    BACK = "back"
    ELEMENTS = "elements"
    """Of a slice of an array: see ``slices.lua`` for the lines."""
    BEGUN = "begun"
    """Not an outcome: the handler of a prefetched job starts."""


GROUPED: Final = "grouped"
_WORDS: Final = {kind: kind.value for kind in Kind}  # plain texts, which are encoded faster


class Outcome(NamedTuple):
    """The outcome of an attempt; ``Kind`` says what ``text``, ``first`` and ``second`` mean.

    ``group``: the failure group that the handler named, for ``FAIL``.

    ``lua/glidemq_orchestrate/parts/outcome.lua`` reads it, and says what each kind does.
    """

    attempt: Attempt
    kind: Kind
    text: str = ""
    retention: str = ""
    first: int = 0
    second: int = 0
    group: str = ""

    @property
    def elements(self) -> int:
        """How many elements of a slice have ended, for ``ELEMENTS``."""
        return sum(not line.startswith(APPENDED) for line in self.text.split("\n")) - self.is_early

    @property
    def is_early(self) -> bool:
        """Whether the slice goes on with the element after those that have ended, for ``ELEMENTS``."""
        return self.text.endswith(f"\n{KEPT}") or self.text == KEPT


class Held(StrEnum):
    """The limit that holds jobs back."""

    NOTHING = ""
    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange. ``limit``: max starts per window, and the window in ms; (0, 0) for none.

    ``immediate``: how many of the jobs start immediately; the others are prefetched.
    ``started``: prefetched jobs whose handlers have started; the server's verdict on these is not awaited.
    ``sizes``: how many elements of arrays to lease as a slice, as JSON by job name; '' for no slices.
    """

    outcomes: Sequence[Outcome]
    wanted: int
    token: str
    again: bool = False
    limit: tuple[int, int] = (0, 0)
    immediate: int = MAX_WANTED
    started: Sequence[Attempt] = ()
    sizes: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to an exchange.

    ``positions``: where to continue in the stream and the events without missing an entry that makes a job
    ready. None if the queue may have more jobs now.
    ``history``: the replication id of the server, if requested.
    ``schedules_ms``: when to check the first schedule; -1 if unknown.
    """

    verdicts: list[str]
    flows: list[str]
    fetched: list[Attempt]
    positions: tuple[str, str] | None
    due_ms: int
    held: Held
    troubles: list[str]
    history: str = ""
    schedules_ms: int = -1


def finish_and_fetch(queue: QueueKeys, consumer: str, request: Request, now_ms: int) -> Call[Answer]:
    """Report outcomes and start jobs, at most ``MAX_OUTCOMES``, ``MAX_NODES`` and ``MAX_WANTED``.

    A repeat with ``again`` returns the jobs of a lost reply and refuses outcomes that were accepted before.
    """

    def decode(reply: Any) -> Answer:
        verdicts, flows, rows, stream, events, due, held, troubles, *more = reply
        name, token = queue.queue, request.token
        expected = len(request.outcomes) + len(request.started)
        if len(verdicts) != expected:
            raise ProtocolError(f"expected {expected} verdicts, got {len(verdicts)}")
        return Answer(
            [readable(verdict) for verdict in verdicts[: len(request.outcomes)]],
            replies.texts(flows),
            [Attempt.from_row(name, token, row) for row in rows],
            (replies.text(stream), replies.text(events)) if stream else None,
            replies.integer(due),
            Held(held),
            [readable(trouble) for trouble in troubles],
            schedules_ms=replies.integer(more[0]) if more else -1,
        )

    words: list[Word] = [
        now_ms,
        GROUP,
        consumer,
        request.wanted,
        request.token,
        "again" if request.again else "",
    ]
    words += request.limit
    started = [Outcome(attempt, Kind.BEGUN) for attempt in request.started]
    for attempt, kind, text, retention, first, second, group in (*request.outcomes, *started):
        words += (
            GROUPED if group else _WORDS[kind], attempt.job_id, attempt.entry_id, attempt.token,
            attempt.processed_on, f"{group}\n{text}" if group else text, retention, first, second,
        )  # fmt: skip
    words.append(request.immediate)
    if request.sizes:
        words.append(request.sizes)
    return function("gmo_finish_and_fetch", [queue.key("stream")], words, decode)


TAKEN_BACK: Final = 2
"""Of a heartbeat: renewed, but a user takes the job back soon."""


def heartbeats(queue: QueueKeys, held: Sequence[Attempt], now_ms: int) -> Call[list[int]]:
    """Renew the leases of up to 500 attempts: 1 renewed, 0 renewed but to be stopped, -1 lost."""
    words: list[Word] = [now_ms]
    for attempt in held:
        words += (attempt.job_id, attempt.token, attempt.processed_on)
    return function("gmo_heartbeats", [queue.key("stream")], words, replies.integers, repeatable=True)


def wake(queue: QueueKeys, stream: str, events: str, block_ms: int) -> Call[Any]:
    """Entries of the stream and the events after these positions; waits for the first entry.

    If ``events`` is '', only the stream is read.
    """
    after = {queue.key("stream"): stream} | ({queue.key("events"): events} if events else {})
    return Call(
        ("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", *after.keys(), *after.values()),
        replies.stream_entries,
        block_ms / 1000,
    )


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
    too: a producer may write no events.
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
    call = finish_and_fetch(queue, consumer, request, clock.now_ms())
    if marked and request.outcomes:
        both: list[Call[Any]] = [call, mark_queue(queue)]
        accepted, history = yield from ask_all(both)
        answer: Answer = replace(accepted, history=history)
    else:
        answer = yield from ask(call)
    early: list[Attempt] = []
    for attempt in answer.fetched:
        if attempt.inputs is None:
            found = yield from backend.inputs(queue, attempt)
            attempt.inputs = found.texts
            if found.removed:
                attempt.unreadable = attempt.unreadable or _incomplete(found.removed)
            elif found.has_open and (yield from backend.hold(queue, attempt)):
                early.append(attempt)
    if early:
        waiting = Request([Outcome(one, Kind.CHILDREN, second=UNBEGUN) for one in early], 0, "")
        yield from ask(finish_and_fetch(queue, consumer, waiting, clock.now_ms()))
        answer = replace(answer, fetched=[attempt for attempt in answer.fetched if attempt not in early])
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
    found = yield from ask(wake(queue, *positions, block_ms))
    entries = found.get(queue.key("stream"), [])
    events = found.get(queue.key("events"), [])
    ready = [
        entry_id for entry_id, fields in events if held is Held.CONCURRENCY or fields.get("event") in READY
    ]
    return News(*(ids[-1] if ids else "" for ids in ([e for e, _ in entries], [e for e, _ in events], ready)))


def let_events_gather(queue: QueueKeys, position: str, block_ms: int) -> Op[bool]:
    """Let events accumulate while other workers are busy. Returns True as soon as the stream has a job."""
    found = yield from ask(wake(queue, position, "", block_ms))
    return bool(found)


_BEATS: Final = 500


def stands(queue: QueueKeys, outcome: Outcome, verdict: str) -> Op[bool]:
    """Whether a verdict still holds on a server that has just taken over and refuses to repeat it.

    It does not if another attempt ended the job: then the verdict was lost.
    """
    ends = {"ok": "completed", "failed": "failed"}
    if outcome.kind not in (Kind.DONE, Kind.SKIP, Kind.FAIL) or verdict not in ends:
        return True  # the job continues in both cases
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn")
    attempt = outcome.attempt
    state, token, started = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if state is None:  # it was removed after its end
        return True
    return (state, token, started) == (ends[verdict], attempt.token, attempt.processed_on)


def check_owner(queue: QueueKeys, attempt: Attempt) -> Op[None]:
    """Check that an attempt still owns its job, and that the job was not revoked.

    Raises:
        LeaseLost: The lease was lost or the job was revoked.
    """
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn", "revoked")
    state, token, started, revoked = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if (state, token, started) != ("active", attempt.token, attempt.processed_on):
        now = f"is {readable(state)}" if state else "was removed"
        raise LeaseLost(f"this attempt no longer owns job {attempt.job_id}, which {now}")
    if revoked == "1":
        raise LeaseLost(f"job {attempt.job_id} was cancelled")


def heartbeat(queue: QueueKeys, held: Sequence[Attempt], now_ms: int) -> Op[list[int]]:
    """Renew the leases of one queue: 1 renewed, 0 renewed but to be stopped, ``TAKEN_BACK``, -1 lost."""
    pages = parts(held, _BEATS)
    renewed = yield from ask_all([heartbeats(queue, page, now_ms) for page in pages])
    return [beat for page in renewed for beat in page]


def renew_all(queue: QueueKeys, group: str, worker_id: str, clock: Clock) -> Op[int]:
    """Renew all leases of a worker in a queue or subscription; returns how many."""
    total, cursor = 0, ""
    while True:
        count, cursor = yield from ask(renew(queue, group, worker_id, cursor, clock.now_ms()))
        total += count
        if not cursor:
            return total


def begin(queue: QueueKeys, consumer: str, attempt: Attempt, clock: Clock) -> Op[bool]:
    """Report that the handler of an attempt starts. Returns whether the attempt still owns its job."""
    request = Request([Outcome(attempt, Kind.BEGUN)], 0, "")
    answer = yield from ask(finish_and_fetch(queue, consumer, request, clock.now_ms()))
    return answer.verdicts == ["ok"]


def renew(queue: QueueKeys, group: str, worker_id: str, cursor: str, now_ms: int) -> Call[tuple[int, str]]:
    """Renew a page of the leases of a worker; returns how many, and where to continue or ''. Idempotent."""
    args = (now_ms, group, worker_id, cursor)

    def decode(reply: Any) -> tuple[int, str]:
        return replies.integer(reply[0]), replies.text(reply[1])

    return function("gmo_renew", [queue.key("stream")], args, decode, repeatable=True)
