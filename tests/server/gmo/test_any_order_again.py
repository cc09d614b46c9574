"""The flow of ``test_any_order``, which is also mended, restarted and changed node by node, and has owners.

Whoever does that may die after any call, and may be overtaken by somebody who does the same.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import rule

from glidemq_orchestrate import FlowNode, FlowSpec, Owner
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.errors import FlowConflict, GenerationTaken, StateError, Superseded
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.node_table import RequestedChange, What, read_row
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.flows.staged.changes import own
from glidemq_orchestrate.flows.staged.submit import advance_flow
from glidemq_orchestrate.flows.submission import restart_flow, submit_flow
from tests.builders import node
from tests.profile import IS_ALL, IS_LONG
from tests.server.gmo.test_any_order import FLOW, OVER, QUEUES, AnyOrder, run_machine

if TYPE_CHECKING:
    from collections.abc import Collection

    from glidemq_orchestrate.flows.generation import FlowRef
    from glidemq_orchestrate.flows.owner import OnExpiry
    from glidemq_orchestrate.flows.status import OnExisting
    from glidemq_orchestrate.wire.call import Op
    from tests.server.conftest import Hand

DIES = st.none() | st.integers(0, 14)
"""After how many calls whoever acts is killed; None: not at all."""
CHANGES: tuple[What, ...] = ("alone", "follow", "completed", "skipped", "failed")
WHO = st.sampled_from(["", "one", "two"])


class AnyOrderAgain(AnyOrder):
    """Also whoever runs it again. Of several generations the current one is watched."""

    def __init__(self) -> None:
        """What was asked for: what a request has begun, and who owns the current generation."""
        super().__init__()
        self.begun: dict[str, tuple[int, dict[str, FlowNode], frozenset[str]]] = {}
        self.owners: dict[str, Owner] = {}
        self.heard: dict[str, int] = {}
        self.given: set[str] = set()
        self.edits = 0

    # --- generations ---

    @rule(data=st.data(), request=WHO, dies=DIES)
    def somebody_restarts(self, data: st.DataObject, request: str, dies: int | None) -> None:
        known, nodes, asked = self.begun.get(request, (None, self.spec, frozenset()))
        before, names = self.ref, list[str]()
        op, kept = self.submission(self.spec, "restart", request), set[str]()
        if by_handle := data.draw(st.booleans()):
            names = data.draw(st.lists(st.sampled_from(list(self.spec)), unique=True, max_size=2))
            kept = self.kept(self.spec, names) if names else kept
            op = restart_flow(before, request, self.world.clock, again=names or None)
        is_another = (not by_handle and nodes != self.spec) or (
            known is not None and asked != frozenset(names)
        )
        try:
            found = self.act(op, dies)
            assert found is None or not is_another
        except FlowConflict:
            found = None
            assert is_another
        has_begun = self.look(self.spec, kept)
        assert not (known is not None and has_begun)
        if found is not None:
            assert found.generation == (known if known is not None else before.generation + 1)
        if request and has_begun:
            self.begun[request] = self.ref.generation, self.spec, frozenset(names)

    @rule(data=st.data(), dies=DIES)
    def somebody_mends(self, data: st.DataObject, dies: int | None) -> None:
        spec, changed = self.mended(data)
        kept = self.kept(spec, changed)
        found = self.act(self.submission(spec), dies)
        has_begun = self.look(spec, kept)
        assert found is None or has_begun

    @rule(data=st.data(), place=st.integers(0, 12), request=WHO)
    def two_do_it_at_once(self, data: st.DataObject, place: int, request: str) -> None:
        """The same two steps of each other, with one request: one generation begins."""
        is_restart = data.draw(st.booleans())
        spec, changed = (self.spec, set[str]()) if is_restart else self.mended(data)
        kept = set() if is_restart else self.kept(spec, changed)
        request = f"{request} {self.ref.generation}"
        how: OnExisting = "restart" if is_restart else "retry_failed"
        slow, fast = (self.submission(spec, how, request) for _ in range(2))
        steps = self.hand.steps(slow)
        with suppress(GenerationTaken, Superseded):
            for _ in range(place):
                next(steps, None)
            self.hand.run(fast)
            for _ in steps:
                pass
        assert self.look(spec, kept)

    def submission(
        self, nodes: dict[str, FlowNode], how: OnExisting = "retry_failed", request: str = ""
    ) -> Op[FlowRef]:
        flow = check_flow(FlowSpec("any", list(nodes.values()), fail_fast=self.fails_fast))
        return submit_flow("glide", replace(flow, request=request), FLOW, how, self.world.clock)

    def mended(self, data: st.DataObject) -> tuple[dict[str, FlowNode], set[str]]:
        """The nodes with some of them changed, new or gone; and the names of those that were changed."""
        self.edits += 1
        followed = {str(one) for step in self.spec.values() for one in step.after}
        changed = set(data.draw(st.lists(st.sampled_from(list(self.spec)), max_size=2)))
        leaves = [name for name in self.spec if name not in followed]
        gone = data.draw(st.sampled_from([None, None, *leaves])) if len(self.spec) > 1 else None
        spec = {
            name: replace(step, data=self.edits) if name in changed else step
            for name, step in self.spec.items()
            if name != gone
        }
        if data.draw(st.booleans()) or not changed - {gone}:
            after = data.draw(st.lists(st.sampled_from(list(spec)), unique=True, max_size=2))
            new = f"new{self.edits}"
            spec[new] = node(new, *after, queue=data.draw(st.sampled_from(["etl", "spark"])))
        return spec, changed

    def kept(self, spec: dict[str, FlowNode], changed: Collection[str]) -> set[str]:
        """The nodes whose results are carried over: completed, unchanged, and after nothing but such ones."""
        key, kept = self.home.flow(self.ref.flow_id), set[str]()
        due = {item.partition("\n")[2] for item in self.client.smembers(f"{key}:again")}
        jobs = self.jobs()
        for name, step in spec.items():
            has_result = jobs.get(name, {}).get("state") == "completed" and "gmo:skipped" not in jobs[name]
            is_due = f"glide:{{{step.queue}}}:{self.ids.get(name)}" in due
            stays = has_result and not is_due and name not in changed
            if stays and all(str(one) in kept for one in step.after):
                kept.add(name)
        return kept

    def act(self, op: Op[FlowRef], dies: int | None) -> FlowRef | None:
        """Do it; what it returns, or None where it is killed."""
        self.is_steered = True
        if dies is None:
            return self.hand.run(op)
        self.hand.run_until(op, dies)
        return None

    def look(self, spec: dict[str, FlowNode], kept: Collection[str]) -> bool:
        """Whether a generation has begun, which has these nodes and keeps the results of some."""
        now = self.hand.run(find_ref("glide", FLOW))
        if now == self.ref:
            return False
        assert now.generation == self.ref.generation + 1
        rows = self.client.hgetall(f"{self.home.flow(now.flow_id)}:nodes")
        ids = {name: found[2] for name, row in rows.items() if (found := read_row(row))}
        assert set(ids) == set(spec)
        assert {name for name, job_id in ids.items() if job_id == self.ids.get(name)} == set(kept)
        self.ref, self.spec, self.ids, self.is_steered = now, dict(spec), ids, True
        self.owners.clear()
        return True

    @rule(times=st.integers(1, 5))
    def workers_do_what_there_is(self, times: int) -> None:
        """So that there are results to carry over."""
        for _ in range(times):
            for queue in QUEUES:
                self.world.exchange(queue, wanted=10)
                ours = [a for a in self.world.held if a.queue == queue.queue and self.world.owns(a)]
                said = [Outcome(attempt, Kind.DONE, "1") for attempt in ours]
                for outcome, verdict in zip(said, self.world.exchange(queue, said), strict=True):
                    self.it_was_heard(outcome, verdict, ours)

    @rule()
    def a_supervisor_looks_at_open_nodes(self) -> None:
        self.world.clock.now += supervise.LAP_MS
        watch = Supervision(self.home, "one")
        for _ in range(20):
            self.hand.run(supervise.check_open(watch, self.world.clock))
            if self.client.hget(f"{self.home.base}:gmo:supervised", "walk") == "0 0":
                break

    # --- single nodes ---

    @rule(
        data=st.data(), what=st.sampled_from(["alone", "follow", "completed", "skipped", "failed"]), dies=DIES
    )
    def somebody_changes_nodes(self, data: st.DataObject, what: What, dies: int | None) -> None:
        names = data.draw(st.lists(st.sampled_from(list(self.spec)), unique=True, min_size=1, max_size=3))
        self.edits += 1
        wanted = RequestedChange(
            what, f"request {self.edits}", '"by hand"' if what == "completed" else "by hand"
        )
        self.is_steered = True
        if what == "completed":
            self.given |= {self.ids[name] for name in names}
        op = change_nodes(self.ref, Selection(tuple(names)), wanted, self.world.clock)
        with suppress(StateError):  # a node has not ended, or the flow is being cancelled
            self.hand.run(op) if dies is None else self.hand.run_until(op, dies)

    def it_completes_by_what_was_accepted(self, completed: set[str]) -> None:
        assert completed <= self.completed | self.given
        self.completed = completed

    # --- owners ---

    @rule(
        name=st.sampled_from("xy"),
        lapse=st.sampled_from([15, 60]),
        on_lapse=st.sampled_from(["cancel", "cancel", "keep"]),
    )
    def an_owner_is_heard_of(self, name: str, lapse: int, on_lapse: OnExpiry) -> None:
        owner = Owner(name, timedelta(seconds=lapse), on_lapse)
        if self.hand.run(own(self.ref, owner, self.world.clock)) == "running":
            self.owners[name] = owner
            self.heard[name] = self.world.clock.now

    @rule(seconds=st.sampled_from([5, 20, 40]), looks=st.integers(1, 6))
    def owners_are_silent(self, seconds: int, looks: int) -> None:
        key = self.home.flow(self.ref.flow_id)
        before = self.client.hgetall(key)
        if before["state"] in OVER:
            self.owners.clear()
        for _ in range(looks):
            self.world.clock.now += 1_000 * seconds
            self.world.call(expire_due(self.home, self.world.clock.now))
        now = self.client.hgetall(key)
        if now.get("reason", "").startswith("its owner") and now.get("reason") != before.get("reason"):
            self.is_steered = True
            left = {name: self.lives_until(name) for name in self.owners}
            assert left
            assert max(left.values()) <= self.world.clock.now, "an owner lives"
            last = [name for name, until in left.items() if until == max(left.values())]
            assert "cancel" in {self.owners[name].on_expiry for name in last}

    def lives_until(self, name: str) -> int:
        return self.heard[name] + self.owners[name].lease_ms

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for _ in range(60):  # as a supervisor does
                for flow_id in self.client.smembers(self.home.key("gmo:todo")):
                    self.world.call(advance_flow(self.home, flow_id, self.world.clock.now))
        super().teardown()
        if hasattr(self, "world"):
            every = self.client.xrange(f"{self.home.base}:gmo:generations:{FLOW}")
            older = [fields["id"] for _, fields in every[:-1]]
            assert {self.client.hget(self.home.flow(one), "state") for one in older} <= set(OVER)


def test_a_flow_that_runs_again_survives_any_order_of_events(hand: Hand, redis_client: Any) -> None:
    run_machine(AnyOrderAgain, hand, redis_client, 400 if IS_LONG else 25 if IS_ALL else 12)
