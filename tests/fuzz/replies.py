"""Replies of the server that are not what they should be: clients and chores raise errors of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from glidemq_orchestrate.attempts import exchange, upkeep, workers
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.exchange import Held
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.broadcasts.messages import Subscription, open_subscription
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, ProtocolError, ServerBusy
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.delivery import Recover
from glidemq_orchestrate.io.delivery import outcome as outcome_of
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.io.topology import Topology
from glidemq_orchestrate.schedules import ops as schedulers
from glidemq_orchestrate.server import libraries as library
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Batch, Op, Request
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.fuzz import odd
from tests.fuzz.calls import Clients, good_arguments
from tests.fuzz.damage import damaged
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import NEVER, listening
from tests.fuzz.violation import Violation
from tests.fuzz.world import world

MAX_REQUESTS: Final = 3_000
ETL: Final = QueueKeys("glide", "etl")
IDLE: Final = QueueKeys("glide", "idle")
CLOCK: Final = SystemClock()
# Of those types that a reply can have.
WORDS: Final = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "OK",
        "x",
        "caf�",
        "�",
        "9" * 400,
        "1.5",
        "nan",
        "inf",
        "null",
        "[",
        "{}",
        "[]",
        "completed",
        "active",
        "staged",
        "portable",
        "error:",
        "skipped",
        "0-0",
        "1-1",
        "x-y",
        '"\\ud83d"',
        "gz:AA",
        '{"gmo":{"flow":1}}',
        "begin:0",
        "a\nb",
        "[1,2,3]",
        '["x"]',
        "run",
        "drop",
        "duplicate",
        "valkey_version:x",
    ]
)
ODD: Final = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | WORDS | odd.ANY_CHARACTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ERRORS: Final = st.sampled_from(
    [
        ProtocolError("WRONGTYPE an odd key"),
        ProtocolError("ERR unknown"),
        ServerBusy("OOM full"),
        LibraryMissing("gone"),
    ]
)
OPS: Final[dict[str, Callable[[], Op[Any]]]] = {
    "supervise.tick": lambda: supervise.tick(Supervision(ETL, "gmo-worker-x"), CLOCK),
    "supervise.tick idle": lambda: supervise.tick(Supervision(IDLE, "gmo-worker-x"), CLOCK),
    "schedulers.tick": lambda: schedulers.tick(ETL, CLOCK),
    "attempt.upkeep": lambda: upkeep.upkeep([ETL, IDLE], CLOCK),
    "attempt.open_queues": lambda: workers.open_queues([ETL]),
    "attempt.announce": lambda: workers.announce([ETL], "w", {"a": 1}, 1_000, CLOCK.now_ms()),
    "attempt.withdraw": lambda: workers.withdraw([ETL], "w"),
    "attempt.listen": lambda: exchange.listen(ETL, ("0-0", "0-0"), 1, Held.NOTHING),
    "attempt.let_events_gather": lambda: exchange.let_events_gather(ETL, "0-0", 1),
    "attempt.advance": lambda: backend.advance(ETL, "f2", CLOCK),
    "attempt.exchange": lambda: exchange.exchange(ETL, "w", exchange.Request([], 5, "token"), CLOCK),
    "attempt.exchange nodes": lambda: exchange.exchange(IDLE, "w", exchange.Request([], 5, "token"), CLOCK),
    "attempt.reclaim": lambda: upkeep.reclaim(ETL, "w", lock_ms=1, max_stalled=0, clock=CLOCK),
    "workers.live": lambda: workers.live(ETL, CLOCK.now_ms()),
    "workers.require": lambda: workers.require("glide", {"etl": ["work"]}, CLOCK.now_ms()),
    "library.status": library.library_status,
    "library.ensure": library.ensure_libraries,
    "library.primaries": library.primaries,
    "broadcast.open": lambda: open_subscription(Subscription(QueueKeys("glide", "news"), "s", "0-0", ())),
}


class Lie(NamedTuple):
    """A reply that is replaced: of which call, which request of it, which part of a batch, and by what."""

    name: str
    at: int
    within: int
    reply: Any


class Liar(SyncDriver):
    """Replaces one reply, and keeps the true ones."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self.lie: Lie | None = None
        self.replies: list[tuple[bool, Any]] = []

    def _reply_to(self, request: Request, topology: Topology, recover: Recover | None) -> Any:
        is_batch = isinstance(request, Batch)
        try:
            reply = super()._reply_to(request, topology, recover)
        except GlideMQError:
            self.replies.append((is_batch, None))
            raise
        self.replies.append((is_batch, reply))
        if len(self.replies) > MAX_REQUESTS:
            raise Endless
        if self.lie is None or len(self.replies) - 1 != self.lie.at:
            return reply
        if is_batch and reply:
            return [
                self.lie.reply if at == self.lie.within % len(reply) else one for at, one in enumerate(reply)
            ]
        return outcome_of(self.lie.reply)


class Endless(BaseException):
    """The operation asks for ever."""


@st.composite
def lies(draw: st.DrawFn, known: dict[str, list[tuple[bool, Any]]]) -> Lie:
    """Another reply in place of a true one."""
    name = draw(st.sampled_from(sorted(known)))
    at = draw(st.integers(0, len(known[name]) - 1))
    is_batch, reply = known[name][at]
    within = draw(st.integers(0, len(reply) - 1)) if is_batch and reply else 0
    true = reply[within] if is_batch and reply else reply
    if isinstance(true, GlideMQError) or draw(st.integers(0, 9)) == 0:
        return Lie(name, at, within, draw(ERRORS))
    return Lie(name, at, within, draw(damaged(true, ODD)))


def _driven(driver: Liar, op: Callable[[], Op[Any]]) -> Any:
    return driver.run(op())


@contextmanager
def opened() -> Iterator[Target]:
    """Needs a server."""
    with ExitStack() as stack:
        heard, here = stack.enter_context(listening()), stack.enter_context(world())
        clients = Clients(here.url, stack)
        driver = Liar(ConnectionSettings.resolve(here.url))
        stack.callback(driver.close)
        for facade in (clients.queue, clients.flows, clients.schedulers, clients.events, clients.client):
            SyncFacade.close(facade)  # a Client itself would stay closed
            facade._hold(driver)
        known: dict[str, Callable[[], Any]] = {name: partial(_driven, driver, op) for name, op in OPS.items()}
        for client, name, method in clients.methods():
            if client in ("queue", "flows", "schedulers", "events", "client", "done", "open"):
                given = good_arguments(client, name, method)
                known[f"{client}.{name}"] = partial(clients.call, method, given)

        def attempt_one(lie: Lie) -> None:
            clients.events.position = "0-0"
            driver.lie, driver.replies = lie, []
            try:
                outcome(known[lie.name], secrets=NEVER)  # a payload may stand where a name should
                heard.check(NEVER)
            except Endless as exc:
                raise Violation(f"{lie.name} asked {MAX_REQUESTS:,} times", f"{lie.name} is endless") from exc
            finally:
                driver.lie = None
                if here.dump() != here.base:
                    here.restore()

        true = {}
        for name, function in known.items():
            clients.events.position, driver.replies = "0-0", []
            outcome(function)
            here.restore()
            if driver.replies:
                true[name] = driver.replies
        yield Target(lies(true), attempt_one)


ENTRY: Final = Entry("replies", "replies that are not what they should be", 13, opened)
