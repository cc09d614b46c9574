"""What users do with the flow: submit, cancel, run it again, add to it. Each repeats what has failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from glidemq_orchestrate import FlowNode, Owner
from glidemq_orchestrate.errors import (
    FlowEnded,
    FlowExpired,
    FlowIncomplete,
    FlowNotFound,
    NodeNotEnded,
    NodeNotRepeatable,
    Superseded,
    TransportError,
)
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.flows.ownership import Ownership, Renewals
from glidemq_orchestrate.flows.submission import restart_flow, submit_flow
from glidemq_orchestrate.wire.call import Op
from tests.properties.simulation.ledger import FLOW, PREFIX
from tests.properties.simulation.plan import JOB, Plan, node_data
from tests.properties.simulation.process import Process, Program, Sleep
from tests.properties.simulation.scheduler import START_MS, Scheduler

ADDED = "added"
BY_HAND = "ended by hand"


class Users:
    """The processes of users.

    Attributes:
        running: Those that are not done.
        is_submitted: A submission has returned.
        is_extended: An extension has returned, or may have taken effect.
        is_gone: A submission was given up for good.
        is_told_expired: Somebody was told that the jobs of the flow were removed.
    """

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self.scheduler, self.plan = scheduler, plan
        self.running: set[str] = set()
        self.is_submitted = self.is_extended = self.is_gone = self.is_told_expired = False

    def submit(self, name: str = "submitter") -> None:
        """Submit the flow, by a process that repeats until it is done."""
        self._begin(name, self._submission(), lambda: self.submit(name))

    def step(self, number: int, what: str) -> None:
        """Do something with the flow."""
        name = f"user-{number}-{what}"
        self._begin(name, self._step(what), lambda: self.step(number, what))

    def own(self, owner: Owner) -> None:
        """Keep the flow wanted, by a process that is begun again when it dies, until the owner vanishes."""
        self._begin("owner", self._owning(owner), lambda: self.own(owner))

    def _owning(self, owner: Owner) -> Program:
        renewals, given = Renewals(), ""
        while self.scheduler.now < START_MS + self.plan.leaves:
            try:
                ref = yield from find_ref(PREFIX, FLOW)
                mine = Ownership(owner, renewals, given)
                yield from mine.renew_if_due(ref, self.scheduler)
                given = mine.owned_id
                if (yield from backend.backend_of(ref).status(ref)).state.is_terminal:
                    return
            except (TransportError, FlowNotFound, Superseded):
                yield Sleep(50)
            else:
                yield Sleep(owner.lease_ms // 6)

    def _begin(self, name: str, program: Program, again: Callable[[], None]) -> None:
        self.running.add(name)
        process = Process(name, weight=self.scheduler.choices.pick([0.2, 1.0, 3.0]), again=again)
        if self.plan.abandons and name.startswith("submitter"):
            process.again = lambda: self._give_up(name)
        process.start("main", self._run(name, program))
        self.scheduler.begin(process)

    def _give_up(self, name: str) -> None:
        self.running.discard(name)
        self.is_gone = True

    def _run(self, name: str, program: Program) -> Program:
        yield from program
        self.running.discard(name)

    def _submission(self) -> Program:
        plan = self.plan
        checked = replace(check_flow(plan.spec), owner=plan.owner)
        while True:
            submitting = submit_flow(PREFIX, checked, FLOW, "attach", self.scheduler, reach=plan.reach)
            try:
                yield from submitting
            except (TransportError, FlowIncomplete):
                yield Sleep(self.scheduler.choices.between(0, 1_000))
            else:
                self.is_submitted = True
                return

    def _step(self, what: str) -> Program:
        for _ in range(20):
            try:
                if what == "attach":
                    yield from self._submission()
                    return
                ref = yield from find_ref(PREFIX, FLOW)
                yield from self._act(ref, what)
            except FlowExpired:
                self.is_told_expired = True
                return
            except Superseded:  # of two who act at once, one was first
                return
            except (TransportError, FlowNotFound, FlowIncomplete):
                yield Sleep(self.scheduler.choices.between(50, 1_000))
            else:
                return

    def _act(self, ref: FlowRef, what: str) -> Op[None]:
        on, clock = backend.backend_of(ref), self.scheduler
        if what == "cancel":
            yield from on.cancel(ref, "enough", clock)
        elif what == "retry_failed":
            yield from on.retry_failed(ref, clock)
        elif " " in what:
            yield from self._change(ref, *what.split())
        elif what == "restart":
            yield from restart_flow(ref, "", clock)
        else:
            first = self.plan.spec.nodes[0]
            added = FlowNode(
                ADDED, queue=first.queue, job=JOB, data=node_data(), after=[first.name], rule="all_done"
            )
            try:
                yield from on.extend(ref, [added], clock)
            except (FlowEnded, FlowIncomplete):  # nothing can be added now
                return
            self.is_extended = True

    def _change(self, ref: FlowRef, what: Any, names: str) -> Op[None]:
        """Run nodes again, or end them; one with the result that its handler would have."""
        chosen = names.split(",")
        for node in self.plan.spec.nodes:
            assert isinstance(node.data, dict)
            if node.name in chosen and node.data["grows"]:  # ended by hand it would add nothing
                return
        text = json.dumps(names) if what == "completed" else BY_HAND
        change = RequestedChange(what, self.scheduler.choices.token(), text)
        try:
            yield from change_nodes(ref, Selection(chosen), change, self.scheduler)
        except (NodeNotEnded, NodeNotRepeatable, FlowEnded):
            return
