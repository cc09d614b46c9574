"""Extending a flow from outside, by its functions: all of it or nothing, while it runs and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.errors import CycleError, FlowEnded, FlowNotFound, NodeExists, UnknownDependency
from glidemq_orchestrate.flows.generation import FlowRef, flow_status
from glidemq_orchestrate.flows.index import sweep
from glidemq_orchestrate.flows.staged import growth as ops
from glidemq_orchestrate.flows.staged.changes import cancel_flow
from glidemq_orchestrate.flows.staged.growth import check_growth, extend_flow
from glidemq_orchestrate.flows.staged.submit import advance
from tests.profile import sampled
from tests.server.gmo.flow_runs import ETL, REF, finish, leftovers, run_all, status

if TYPE_CHECKING:
    from glidemq_orchestrate import FlowNode
    from tests.server.gmo.conftest import Bench


def extend(bench: Bench, *nodes: FlowNode) -> Any:
    return bench.hand.run(ops.extend(REF, nodes, bench))


class TestExtending:
    def test_a_running_flow_gets_more(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"))
        finish(bench, bench.begin())
        assert extend(bench, node("c"), node("d", "a", "b"), node("e", "c", queue="spark")) == "running"
        assert sorted(run_all(bench)) == ["b", "c", "d", "e"]
        assert status(bench) == ("completed", 5, 5, 0)
        assert leftovers(bench) == []

    def test_a_completed_flow_runs_again(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        run_all(bench)
        assert status(bench)[0] == "completed"
        assert extend(bench, node("b", "a")) == "running"
        assert status(bench) == ("running", 2, 1, 0)
        assert bench.call(flow_status(ETL, "f")).finished_at is None
        assert run_all(bench) == ["b"]
        assert status(bench) == ("completed", 2, 2, 0)
        assert ("flow.extended", "f") in bench.events()

    def test_the_same_again_changes_nothing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        extend(bench, node("b", "a"))
        before = bench.dump()
        assert extend(bench, node("b", "a")) == "running"
        assert bench.dump() == before
        run_all(bench)
        assert extend(bench, node("b", "a")) == "completed"
        assert status(bench) == ("completed", 2, 2, 0)

    @pytest.mark.long
    @pytest.mark.parametrize("died_after", sampled(range(12)))
    def test_an_extension_that_died_is_repeated(self, bench: Bench, node: Any, died_after: int) -> None:
        bench.submit(node("a"))
        run_all(bench)
        many = [node(f"n{n}", "a") for n in range(130)]
        bench.hand.run_until(ops.extend(REF, many, bench), died_after)
        assert status(bench)[1] in {1, 131}
        extend(bench, *many)
        assert len(run_all(bench)) == 130
        assert status(bench) == ("completed", 131, 131, 0)
        assert leftovers(bench) == []

    @pytest.mark.parametrize("died_after", sampled(range(8)))
    def test_an_extension_that_is_not_repeated_is_swept(
        self, bench: Bench, node: Any, died_after: int
    ) -> None:
        bench.submit(node("a"))
        many = [node(f"n{n}", "a") for n in range(130)]
        bench.hand.run_until(ops.extend(REF, many, bench), died_after)
        staged = status(bench)[1] == 1
        bench.now += 3_600_000
        bench.hand.run(sweep([ETL], bench))
        assert len(bench.client.keys("*:job:*")) == (1 if staged else 131)
        bench.hand.run(advance(REF, bench))
        run_all(bench)
        assert status(bench)[0] == "completed"
        assert leftovers(bench) == []

    def test_refusals_leave_everything_as_it_was(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b"))
        before = bench.dump(events=False)
        for nodes, error in (
            ([*(node(f"x{n}") for n in range(60)), node("b")], NodeExists),
            ([node("x", "nowhere")], UnknownDependency),
            ([node("x", "y"), node("y", "x")], CycleError),
        ):
            with pytest.raises(error):
                extend(bench, *nodes)
            assert bench.dump(events=False) == before
        bench.call(cancel_flow(ETL, "f", "why", bench.now))
        before = bench.dump()
        with pytest.raises(FlowEnded, match="cancelled"):
            extend(bench, node("x"))
        assert bench.dump() == before
        with pytest.raises(FlowNotFound):
            bench.hand.run(ops.extend(FlowRef(ETL, "g"), [node("x")], bench))

    def test_the_last_chunk_alone_adds_nothing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        growth = check_growth([node(f"x{n}") for n in range(60)])
        *_, last = extend_flow(ETL, "f", growth, {}, bench.now)
        assert bench.hand.answer(last).code == "GMO_FLOW_INCOMPLETE"
        assert status(bench)[1] == 1
