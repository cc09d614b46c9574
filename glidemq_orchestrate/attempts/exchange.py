"""The main call of a worker, ``gmo_finish_and_fetch``, and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

# The server accepts 100 of each, but a call must take less than 5 ms there, and shorter calls overlap better
# with the worker's own work.
MAX_OUTCOMES: Final = 50
MAX_NODES: Final = 16  # the end of a node releases others
MAX_WANTED: Final = 64
UNBEGUN: Final = 1
"""The second number of ``LATER``: no handler was called, so the queue timeout of a node continues."""


class Kind(StrEnum):
    """The kind of an outcome."""

    DONE = "done"
    SKIP = "skip"
    FAIL = "fail"
    LATER = "later"
    CHILDREN = "children"
    SUSPEND = "suspend"
    BACK = "back"
    BEGUN = "begun"
    """Not an outcome: the handler of a prefetched job begins."""


_WORDS: Final = {kind: kind.value for kind in Kind}  # plain texts, which are encoded faster


class Outcome(NamedTuple):
    """The outcome of an attempt; see ``lua/glidemq_orchestrate/parts/outcome.lua`` for its columns."""

    attempt: Attempt
    kind: Kind
    text: str = ""
    retention: str = ""
    first: int = 0
    second: int = 0


class Held(StrEnum):
    """The limit that holds jobs back."""

    NOTHING = ""
    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange. ``limit``: max starts per window, and the window in ms; (0, 0) for none.

    ``starts``: how many of the jobs begin at once; the others are prefetched.
    ``begun``: prefetched jobs whose handlers have begun; the server's verdict on these is not awaited.
    """

    outcomes: Sequence[Outcome]
    wanted: int
    token: str
    again: bool = False
    limit: tuple[int, int] = (0, 0)
    starts: int = MAX_WANTED
    begun: Sequence[Attempt] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to an exchange.

    ``positions`` in stream and events: a client that continues there misses nothing that makes a job ready.
    None if the queue may have more jobs now.
    ``history``: the replication id of the server, if requested.
    ``schedules_ms``: when to check the first schedule; -1 for unknown.
    """

    verdicts: list[str]
    flows: list[str]
    begun: list[Attempt]
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
        expected = len(request.outcomes) + len(request.begun)
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
    begun = [Outcome(attempt, Kind.BEGUN) for attempt in request.begun]
    for attempt, kind, text, retention, first, second in (*request.outcomes, *begun):
        words += (
            _WORDS[kind], attempt.job_id, attempt.entry_id, attempt.token, attempt.processed_on, text,
            retention, first, second
        )  # fmt: skip
    words.append(request.starts)
    return function("gmo_finish_and_fetch", [queue.key("stream")], words, decode)


def heartbeat(queue: QueueKeys, held: Sequence[Attempt], now_ms: int) -> Call[list[int]]:
    """Renew the leases of up to 500 attempts: 1 renewed, 0 renewed but to be stopped, -1 lost."""
    words: list[Word] = [now_ms]
    for attempt in held:
        words += (attempt.job_id, attempt.token, attempt.processed_on)
    return function("gmo_heartbeats", [queue.key("stream")], words, replies.integers, repeatable=True)


def wake(queue: QueueKeys, stream: str, events: str, block_ms: int) -> Call[Any]:
    """Entries of the stream and the events after these positions; waits for the first.

    If ``events`` is '', only the stream is read.
    """
    after = {queue.key("stream"): stream} | ({queue.key("events"): events} if events else {})
    return Call(
        ("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", *after.keys(), *after.values()),
        replies.stream_entries,
        block_ms / 1000,
    )
