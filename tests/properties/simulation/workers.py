"""A worker and a supervisor as programs: the operations of the shell, in its order; see the package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

from glidemq_orchestrate import FlowNode
from glidemq_orchestrate.attempts import client_supervision, upkeep, workers
from glidemq_orchestrate.attempts.client_supervision import Area
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.exchange import (
    MAX_NODES,
    Answer,
    Kind,
    Outcome,
    Request,
    carry,
    exchange,
    heartbeat,
)
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.node_table import read_results
from glidemq_orchestrate.flows.staged.growth import add_nodes
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.testing.chaos.recorder import run_of
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.executor import outcome_of_error, outcome_of_value, refuse
from glidemq_orchestrate.worker.handlers.signals import RetryLater, Skip, Unrecoverable
from glidemq_orchestrate.worker.listener import BLOCK_MS
from glidemq_orchestrate.worker.renewing import MAX_BEAT_SECONDS
from glidemq_orchestrate.worker.services.registration import ANNOUNCE_SECONDS
from glidemq_orchestrate.worker.services.worker import UPKEEP_SECONDS
from tests.properties.simulation.arrays import SIZES, run_element, run_slice
from tests.properties.simulation.choices import Choices
from tests.properties.simulation.ledger import PREFIX, ServerLedger
from tests.properties.simulation.plan import JOB, node_data
from tests.properties.simulation.process import Process, Program, Sleep, Task
from tests.properties.simulation.scheduler import Scheduler

CONCURRENCY: Final = 3
MAX_STALLED: Final = 1_000
SECOND: Final = 1_000


class SimulatedWorker:
    """A worker of all queues.

    Args:
        scheduler: The world.
        ledger: Tells handlers in which round they run, and collects what they find wrong.
        queues: The names of its queues.
        heals: Handlers that fail do not after a retry.
        late: A queue that it does not fetch from before a time.
        has_arrays: It runs slices of arrays.
        again: Begins its successor after a kill.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: ServerLedger,
        queues: Sequence[str],
        *,
        heals: bool,
        late: tuple[str, int] = ("", 0),
        has_arrays: bool = False,
        again: Callable[[], None] | None,
    ) -> None:
        token = scheduler.choices.token()
        self.id = f"gmo-worker-{token}"
        self.scheduler, self.ledger, self.heals, self.late = scheduler, ledger, heals, late
        self.early = Choices(f"early reports of {scheduler.choices.seed}, {token}")
        self._unjudged = set[str]()
        self.queues = {name: QueueKeys(PREFIX, name) for name in queues}
        self._areas = {
            name: area_of(scheduler, self.id, keys, self.queues.values())
            for name, keys in self.queues.items()
        }
        self.held: dict[tuple[str, str], Attempt] = {}
        self.outbox: dict[str, list[Outcome]] = {name: [] for name in queues}
        self.unsent = 0
        self.closing = False
        self._sizes = json.dumps({"": scheduler.choices.pick(SIZES)}) if has_arrays else ""
        self._handlers: dict[tuple[str, str], Task] = {}
        self._feeds: dict[str, Task] = {}
        weight = scheduler.choices.pick([0.2, 1.0, 1.0, 3.0])
        self.process = Process(f"worker-{token}", weight=weight, again=again)
        self.process.start("start", self._begin())
        scheduler.begin(self.process)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing and has nothing to report."""
        return not self.held and not any(self.outbox.values()) and not self.unsent

    # --- the service ---

    def _begin(self) -> Program:
        for keys in self.queues.values():
            yield from self._until_done(partial(workers.open_queues, [keys]))
            yield from self._until_done(partial(self._announcing, keys))
        lock = self.scheduler.lock_ms
        for name, keys in self.queues.items():
            self._feeds[name] = self.process.start(f"feed {name}", self._feed(name, keys))
            chores: list[tuple[str, int, Callable[[], Op[object]]]] = [
                ("leases", min(lock // 3, int(MAX_BEAT_SECONDS * SECOND)), partial(self._beat, keys)),
                (
                    "upkeep",
                    int(UPKEEP_SECONDS * SECOND),
                    partial(upkeep.upkeep, [keys], self.scheduler),
                ),
                ("reclaiming", max(lock // 2, 500), partial(self._reclaim, keys)),
                ("supervision", int(UPKEEP_SECONDS * SECOND), partial(self._supervise, keys)),
                ("registration", int(ANNOUNCE_SECONDS * SECOND), partial(self._announcing, keys)),
            ]
            for what, every, chore in chores:
                self.process.start(f"{what} {name}", self._repeat(every, chore))

    def _until_done(self, make: Callable[[], Op[object]]) -> Program:
        while True:
            try:
                yield from make()
            except TransportError:
                yield Sleep(100)
            else:
                return

    def _repeat(self, every: int, make: Callable[[], Op[object]]) -> Program:
        """One chore; a broken connection ends no chore."""
        while True:
            with suppress(TransportError):
                yield from make()
            yield Sleep(every)

    def _announcing(self, keys: QueueKeys) -> Op[None]:
        about = {"addr": "sim", "pid": 1, "startedAt": 0, "activeJobs": 0, "handlers": [JOB]}
        return workers.announce([keys], self.id, about, 30 * SECOND, self.scheduler.now)

    def _reclaim(self, keys: QueueKeys) -> Op[object]:
        lock = self.scheduler.lock_ms
        return upkeep.reclaim(keys, self.id, lock_ms=lock, max_stalled=MAX_STALLED, clock=self.scheduler)

    def _supervise(self, keys: QueueKeys) -> Op[object]:
        return client_supervision.supervise(self._areas[keys.queue])

    def _beat(self, keys: QueueKeys) -> Op[None]:
        held = [attempt for attempt in self.held.values() if attempt.queue == keys.queue]
        if not held:
            return
        kept = yield from heartbeat(keys, held, self.scheduler.now)
        for attempt, beat in zip(held, kept, strict=True):
            if beat < 1:
                self._cancel(attempt, is_revoked=beat == 0)

    def stop(self) -> None:
        """End in order: give back what it holds, report everything, unregister."""
        self.closing, self.process.again = True, None
        for key, task in list(self._handlers.items()):
            self.process.end(task)
            attempt = self.held.pop(key)
            self.outbox[attempt.queue].append(Outcome(attempt, Kind.BACK))
        self._handlers.clear()
        for feed in self._feeds.values():
            self.scheduler.wake(feed)
        self.process.start("stop", self._finish())

    def _finish(self) -> Program:
        while any(feed in self.process.tasks for feed in self._feeds.values()):
            yield Sleep(10)
        for keys in self.queues.values():
            yield from self._until_done(partial(client_supervision.resign, self._areas[keys.queue]))
        yield from self._until_done(partial(workers.withdraw, list(self.queues.values()), self.id))
        self.process.is_alive = False

    # --- the feed of a queue ---

    def _feed(self, name: str, keys: QueueKeys) -> Program:
        is_dry = False
        while name == self.late[0] and self.scheduler.now < self.late[1] and not self.closing:
            yield Sleep(max(self.late[1] - self.scheduler.now, 0))
        while True:
            outcomes, self.outbox[name] = self.outbox[name][:MAX_NODES], self.outbox[name][MAX_NODES:]
            wanted = 0 if self.closing or (is_dry and not outcomes) else max(CONCURRENCY - len(self.held), 0)
            if not outcomes and not wanted:
                if self.closing and not self.outbox[name]:
                    return
                yield Sleep(BLOCK_MS, on_news=True)
                is_dry = False
                continue
            self.unsent += 1
            request = Request(outcomes, wanted, self.scheduler.choices.token(), sizes=self._sizes)
            answer = yield from self._until_reply(keys, request)
            self.unsent -= 1
            if answer is not None:
                is_dry = is_dry if not wanted else answer.positions is not None
                yield from self._take(keys, outcomes, answer)

    def _until_reply(self, keys: QueueKeys, request: Request) -> Op[Answer | None]:
        pause = 100
        while True:
            try:
                return (yield from exchange(keys, self.id, request, self.scheduler))
            except TransportError:
                request = replace(request, again=True)
            yield Sleep(pause)  # type: ignore[misc]  # a program may wait, an operation does not
            pause = min(2 * pause, 2 * SECOND)
            if self.closing and not request.outcomes:
                return None

    def _take(self, keys: QueueKeys, outcomes: Sequence[Outcome], answer: Answer) -> Program:
        """What follows an exchange."""
        self.outbox[keys.queue] += [
            one for one, verdict in zip(outcomes, answer.verdicts, strict=True) if verdict == "again"
        ]
        for one, verdict in zip(outcomes, answer.verdicts, strict=True):
            if one.kind is Kind.ELEMENTS and one.is_early and verdict != "again":
                self._judged(one.attempt, verdict)
        for attempt in answer.fetched:
            if self.closing:
                self.outbox[keys.queue].append(Outcome(attempt, Kind.BACK))
                continue
            key = attempt.queue, attempt.job_id
            if key in self._handlers:  # the attempt before has lost its lease, and will find out
                self.process.end(self._handlers.pop(key))
            self.held[key] = attempt
            self._handlers[key] = self.process.start(f"job {attempt.job_id}", self._handle(attempt))
        if "failed" in answer.verdicts:
            yield from self._quietly(write_noted([keys], self.scheduler))
        if any(outcome.attempt.options.portable for outcome in outcomes):
            yield from self._quietly(carry(keys, outcomes, answer.verdicts, self.scheduler))
        for flow_id in answer.flows:
            yield from self._quietly(backend.advance(keys, flow_id, self.scheduler))

    def _quietly(self, op: Op[object]) -> Program:
        with suppress(TransportError):
            yield from op

    # --- handlers ---

    def _handle(self, attempt: Attempt) -> Program:
        """The handler of a node; its data say how it ends."""
        self._check_inputs(attempt)
        data = json.loads(attempt.data)
        limit = attempt.options.timeout
        if limit is not None and data["ms"] > milliseconds(limit):
            yield Sleep(milliseconds(limit))
            error = TimeoutError(f"still running after {limit}")
            outcome = outcome_of_error(attempt, error, 0.0, now_ms=self.scheduler.now)
        else:
            if data["ms"]:
                yield Sleep(data["ms"])
            outcome = yield from self._outcome(attempt, data)
        key = attempt.queue, attempt.job_id
        del self._handlers[key], self.held[key]
        self._report(outcome)

    def report_early(self, attempt: Attempt, lines: Sequence[str], first: int) -> Program:
        """Report elements of a slice while the next one runs for a while, and await the verdict."""
        run = run_of(attempt)
        self._unjudged.add(run)
        self._report(Outcome(copy(attempt), Kind.ELEMENTS, "\n".join(lines), first=first))
        yield Sleep(self.early.pick([0, 50, 300, 1_500]))
        while run in self._unjudged:
            yield Sleep(20)

    def _judged(self, reported: Attempt, verdict: str) -> None:
        """The verdict on an early report: if the lease is lost, the handler is stopped."""
        self._unjudged.discard(run_of(reported))
        held = self.held.get((reported.queue, reported.job_id))
        if verdict.startswith("stale") and held is not None and held.token == reported.token:
            self._cancel(held, is_revoked=False)

    def _outcome(self, attempt: Attempt, data: dict[str, object]) -> Op[Outcome]:
        if attempt.slice is not None:
            return (yield from run_slice(self, attempt, attempt.slice))
        if attempt.array_id:
            return (yield from run_element(self, attempt, data))
        return (yield from self.run_user_code(attempt, data, run_of(attempt)))

    def run_user_code(self, attempt: Attempt, data: dict[str, object], run: str) -> Op[Outcome]:
        """The outcome of a node or of an element; its result is the name of the run."""
        error: Exception | None = None
        end = "completed" if self.heals and data["end"] == "failed" and self.ledger.round else data["end"]
        if data["grows"] and attempt.flow_id and not attempt.options.portable:
            added = FlowNode(f"{attempt.node}-x", queue=attempt.queue, job=JOB, data=node_data())
            try:
                yield from add_nodes(PREFIX, attempt, [added], (), self.scheduler)
            except GlideMQError as exc:
                error = exc
        if isinstance(error, TransportError):  # "call again": here by another attempt
            error = RetryLater(timedelta(milliseconds=50), counts=False)
        elif error is None:
            error = self._raised(attempt, data, str(end))
        if error is None:
            return outcome_of_value(attempt, run, 0.0)
        return outcome_of_error(attempt, error, 0.0, now_ms=self.scheduler.now)

    def _raised(self, attempt: Attempt, data: dict[str, object], end: str) -> Exception | None:
        token = (attempt.queue, attempt.job_id)
        if data["later"] and token not in self.ledger.postponed:
            self.ledger.postponed.add(token)
            return RetryLater(timedelta(milliseconds=300), counts=False)
        if attempt.attempts_made < int(str(data["first"])):
            return ValueError("not yet")
        if end == "failed":
            return Unrecoverable("broken")
        return Skip("not needed") if end == "skipped" else None

    def _check_inputs(self, attempt: Attempt) -> None:
        """The results of the completed dependencies, no others and none missing."""
        run = run_of(attempt, attempt.slice.indexes[0] if attempt.slice else attempt.element)
        self.ledger.check_inputs(run, read_results(attempt.inputs or {}))

    def _report(self, outcome: Outcome) -> None:
        queue = outcome.attempt.queue
        self.outbox[queue].append(outcome)
        self.scheduler.wake(self._feeds[queue])

    def _cancel(self, attempt: Attempt, *, is_revoked: bool) -> None:
        key = attempt.queue, attempt.job_id
        if self.held.get(key) is not attempt:
            return
        del self.held[key]
        self.process.end(self._handlers.pop(key))
        if is_revoked:
            self._report(refuse(attempt, "revoked"))
        self.scheduler.wake(self._feeds[attempt.queue])


def area_of(scheduler: Scheduler, token: str, keys: QueueKeys, own: Iterable[QueueKeys]) -> Area:
    """How a process looks after a queue, and after those with which it has flows in common."""
    every_ms = int(UPKEEP_SECONDS * SECOND)
    watch = Supervision(keys, token, scheduler.lock_ms, MAX_STALLED)
    return Area(watch, scheduler, every_ms, every_ms, frozenset(own))


def supervisor(scheduler: Scheduler, queues: Sequence[str], again: Callable[[], None] | None) -> Process:
    """A process of ``glidemq supervise``."""
    token = f"supervisor-{scheduler.choices.token()}"
    process = Process(token, weight=scheduler.choices.pick([0.2, 1.0, 3.0]), again=again)

    own = [QueueKeys(PREFIX, name) for name in queues]

    def watching(name: str) -> Program:
        work = area_of(scheduler, token, QueueKeys(PREFIX, name), own)
        while True:
            with suppress(TransportError):
                yield from client_supervision.supervise(work)
            yield Sleep(int(UPKEEP_SECONDS * SECOND))

    for name in queues:
        process.start(name, watching(name))
    return scheduler.begin(process)
