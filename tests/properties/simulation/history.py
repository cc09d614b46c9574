"""One history: it is drawn, runs with faults, comes to rest without them, and is checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from glidemq_orchestrate import ArrayNode
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.wire.call import Call
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.properties.simulation.arrays import draw_arrays
from tests.properties.simulation.checker import Checker, possible_nodes
from tests.properties.simulation.choices import Choices
from tests.properties.simulation.expiry import TOMBSTONE_MS
from tests.properties.simulation.ledger import PREFIX, ServerLedger
from tests.properties.simulation.limits import LATENESS_MS
from tests.properties.simulation.plan import Path, Plan, draw_changes, draw_owner, draw_plan
from tests.properties.simulation.scheduler import START_MS, Scheduler, Stuck
from tests.properties.simulation.store import Store
from tests.properties.simulation.users import Users
from tests.properties.simulation.workers import SimulatedWorker, supervisor

LOCK_MS: Final = 2_000
ABANDONED_MS: Final = 16 * 60_000
SWEPT_MS: Final = 61 * 60_000


@dataclass(frozen=True, slots=True)
class Result:
    """How a history went.

    Attributes:
        seed: It replays the history.
        plan: What it was about.
        problems: What broke a promise; empty if nothing did.
        steps: How many calls were made.
        ms: How much time passed in it.
        digest: A fingerprint of every decision.
        trace: The decisions.
    """

    seed: str
    plan: Plan
    problems: list[str]
    steps: int
    ms: int
    digest: str
    trace: list[str]


class History:
    """The processes of a plan, and the phases that they go through."""

    def __init__(self, store: Store, choices: Choices, plan: Plan) -> None:
        self.plan, self.choices = plan, choices
        self.scheduler = Scheduler(store, choices, plan.path == "portable", LOCK_MS)
        self.users = Users(self.scheduler, plan)
        home = QueueKeys(PREFIX, check_flow(plan.spec).home)
        self.ledger = ServerLedger(store.client, home, possible_nodes(plan), LOCK_MS)
        self.ledger.lease_ms = plan.owner.lease_ms if plan.owner else 0
        self.checker = Checker(plan, self.scheduler, self.ledger, self.users)
        self.workers: dict[int, SimulatedWorker] = {}
        store.reset(choices.between(1, 2**30), self._observe, self.checker.expiry.before)

    def _observe(self, call: Call[Any], reply: Any) -> None:
        self.ledger.observe(call, reply)
        self.checker.expiry.after(call, reply)

    def begin(self) -> None:
        """Begin all processes of the plan."""
        plan, scheduler = self.plan, self.scheduler
        for number in range(plan.workers):
            self._begin_worker(number)
        for _ in range(plan.supervisors):
            self._begin_supervisor()
        for number in range(plan.submitters):
            name = f"submitter-{number}"
            scheduler.after(self.choices.between(0, 300), partial(self.users.submit, name))
        if plan.owner is not None:
            self.users.own(plan.owner)
        for number, (ms, what) in enumerate(plan.steps):
            scheduler.after(ms, partial(self.users.step, number, what))

    def _begin_worker(self, number: int) -> None:
        self.workers[number] = SimulatedWorker(
            self.scheduler,
            self.ledger,
            self.plan.queues,
            heals=self.plan.heals,
            late=(self.plan.late[0], START_MS + self.plan.late[1]),
            has_arrays=any(isinstance(node, ArrayNode) for node in self.plan.spec.nodes),
            again=partial(self._begin_worker, number),
        )

    def _begin_supervisor(self) -> None:
        supervisor(self.scheduler, self.plan.queues, self._begin_supervisor)

    def is_at_rest(self) -> bool:
        """Whether everything asked for is done and no worker holds a job."""
        return (
            (self.users.is_submitted or self.users.is_gone)
            and not self.users.running
            and not self.scheduler.is_anything_due
            and self.scheduler.now >= START_MS + self.plan.late[1]  # what has ended is still in its stream
            and all(worker.is_idle for worker in self.workers.values())
            and self.checker.has_ended()
        )

    def run(self) -> list[str]:
        """Run it to its end; returns what broke a promise."""
        scheduler = self.scheduler
        self.begin()
        scheduler.faults = self.plan.faults
        with suppress(Stuck):  # with faults, it need not come to rest
            scheduler.go(self.is_at_rest, steps=2_500, ms=60_000)
        return self.finish()

    def finish(self) -> list[str]:
        """Come to rest without faults, stop the workers, and check."""
        scheduler = self.scheduler
        try:
            scheduler.calm()
            if self.users.is_gone and not self.users.is_submitted:
                scheduler.jump(ABANDONED_MS)
            scheduler.go(self.is_at_rest, steps=20_000, ms=120_000)
            self._sweep()
            self._let_expire()
            for worker in self.workers.values():
                worker.stop()
            scheduler.go(
                lambda: not any(w.process.is_alive for w in self.workers.values()), steps=20_000, ms=60_000
            )
        except Stuck as exc:
            state = scheduler.store.client.hgetall(self.checker.home.flow(self.ledger.stored))
            return [*self.ledger.problems, f"{exc}: {state}", *self.checker.problems()]
        if found := [*self.ledger.problems, *scheduler.problems, *self.checker.expiry.problems]:
            return found
        return list(self.checker.problems())

    def _sweep(self) -> None:
        """Wait until what is left of nodes that have ended is removed, and what was staged in vain."""
        scheduler = self.scheduler
        scheduler.go(lambda: not self.checker.has_entries(), steps=20_000, ms=60_000)
        if self.checker.has_staged():
            scheduler.now += SWEPT_MS
            scheduler.go(lambda: not self.checker.has_staged(), steps=20_000, ms=60_000)
        if self.checker.has_due():
            self._let_pass()

    def _let_expire(self) -> None:
        """Wait for the end of the retention, if there is one; perhaps of the tombstone, and submit again."""
        expiry, scheduler = self.checker.expiry, self.scheduler
        if self.plan.spec.retention is None or not self.users.is_submitted:
            return
        scheduler.go(expiry.is_over, steps=20_000, ms=60_000)
        self._let_pass()
        expiry.problems += expiry.tombstone_problems()
        scheduler.now += TOMBSTONE_MS
        self._let_pass()
        expiry.problems += expiry.nothing_problems()
        if not self.plan.comes_back:
            return
        expiry.reset()
        self.ledger.forget()
        self.users.is_extended = self.users.is_told_expired = False
        self.users.submit("submitter-again")
        scheduler.go(self.is_at_rest, steps=20_000, ms=120_000)
        scheduler.go(expiry.is_over, steps=20_000, ms=60_000)
        self._sweep()
        self._let_pass()

    def _let_pass(self) -> None:
        """Let everybody do what is due, and what they were about to do."""
        until = self.scheduler.now + LATENESS_MS[self.plan.path]
        self.scheduler.go(lambda: self.scheduler.now > until, steps=20_000, ms=60_000)


def run_history(store: Store, seed: str, path: Path) -> Result:
    """Draw a history from a seed, run and check it."""
    choices = Choices(f"{path}:{seed}")
    plan = draw_changes(Choices(f"changes of {path}:{seed}"), draw_plan(choices, path))
    plan = draw_owner(Choices(f"owner of {path}:{seed}"), plan)
    plan = draw_arrays(Choices(f"arrays of {path}:{seed}"), plan)
    history = History(store, choices, plan)
    problems = history.run()
    scheduler = history.scheduler
    for process in scheduler.processes:
        process.die()
    ms = scheduler.now - START_MS
    return Result(seed, plan, problems, scheduler.steps, ms, choices.digest, choices.trace)
