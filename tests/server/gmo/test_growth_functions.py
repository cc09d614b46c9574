"""Growth by its functions: what is staged belongs to the flow once its attempt is accepted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.errors import (
    CycleError,
    DuplicateNode,
    FlowTooLarge,
    GlideMQError,
    InvalidFlow,
    LeaseLost,
    NodeExists,
    UnknownDependency,
)
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import sweep
from glidemq_orchestrate.flows.node_table import node_inputs
from glidemq_orchestrate.flows.staged import reading
from glidemq_orchestrate.flows.staged.changes import cancel, cancel_flow
from glidemq_orchestrate.flows.staged.growth import add_nodes, extend
from glidemq_orchestrate.flows.staged.submit import advance, retry_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.profile import sampled
from tests.server.gmo.flow_runs import ETL, REF, SPARK, finish, leftovers, run_all, status

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.conftest import Hand
    from tests.server.gmo.conftest import Bench


def grow(bench: Bench, attempt: Attempt, *nodes: FlowNode, before: tuple[str, ...] = ()) -> None:
    bench.hand.run(add_nodes("glide", attempt, nodes, before, bench))


class TestStaged:
    def test_what_is_staged_is_invisible(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"), node("join", "split"))
        attempt = bench.begin()
        before = bench.dump()
        grow(bench, attempt, node("a"), node("b", "a", queue="spark"))
        now = bench.dump()
        for key in ("glide:{etl}:gmo:flow:f", "glide:{etl}:gmo:flow:f:nodes", "glide:{etl}:gmo:flow:f:open"):
            assert now[key] == before[key]
        assert now["glide:{etl}:stream"] == before["glide:{etl}:stream"]
        assert bench.job("f~a")["state"] == "waiting-children"
        assert status(bench) == ("running", 2, 0, 0)

    def test_a_repeat_changes_nothing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"))
        before = bench.dump()
        grow(bench, attempt, node("a"))
        assert bench.dump() == before

    def test_it_runs_after_the_node_and_before_the_named_dependent(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"), node("join", "split"), node("other", "split"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"), node("b", "a", queue="spark"), node("c", "a"), before=("join",))
        finish(bench, attempt)
        assert status(bench)[1:3] == (6, 1)
        assert bench.client.smembers("glide:{etl}:deps:f~join") == {
            "glide:{etl}:f~split", "glide:{spark}:f~b", "glide:{etl}:f~c",
        }  # fmt: skip
        ran = run_all(bench)
        assert sorted(ran) == ["a", "b", "c", "join", "other"]
        assert ran[-1] == "join"
        assert ran.index("a") < min(ran.index("b"), ran.index("c"))
        assert status(bench) == ("completed", 6, 6, 0)
        assert leftovers(bench) == []
        nodes = {found.name: found for found in bench.hand.run(reading.nodes(REF))}
        assert nodes["a"].after == ("split",)
        assert set(nodes["join"].after) == {"split", "b", "c"}
        inputs = bench.call(node_inputs(ETL, "f~join", "0"))[1][0]
        assert inputs == {name: f'"{name}!"' for name in ("split", "b", "c")}

    def test_the_last_node_of_a_flow_can_add_more(self, bench: Bench, node: Any) -> None:
        bench.submit(node("only"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"))
        grow(bench, attempt, node("b", "a"))  # a later call may name nodes of an earlier one
        finish(bench, attempt)
        assert status(bench)[0] == "running"
        assert run_all(bench) == ["a", "b"]
        assert status(bench) == ("completed", 3, 3, 0)

    def test_added_nodes_may_wait_for_nodes_in_any_state(self, bench: Bench, node: Any) -> None:
        bench.submit(node("done"), node("grower", "done"), node("slow", queue="spark"))
        finish(bench, bench.begin())
        attempt = bench.begin()
        grow(bench, attempt, node("a", "done"), node("b", "slow"), node("c", "done", "slow", "a"))
        finish(bench, attempt)
        first, second, *rest = run_all(bench)
        assert (first, second, sorted(rest)) == ("a", "slow", ["b", "c"])  # both are ready: in any order
        assert status(bench) == ("completed", 6, 6, 0)

    def test_a_node_added_after_a_failed_one_fails(self, bench: Bench, node: Any) -> None:
        bench.submit(node("bad"), node("grower", queue="spark"))
        bench.fail(bench.begin())
        attempt = bench.begin(SPARK)
        grow(bench, attempt, node("a", "bad"), node("b", "a"))
        finish(bench, attempt)
        assert bench.job("f~a")["failedReason"] == "upstream failed: bad"
        assert bench.job("f~b")["failedReason"] == "upstream failed: bad"
        assert status(bench) == ("failed", 4, 1, 3)

    def test_a_growing_node_that_is_added_grows_too(self, bench: Bench, node: Any) -> None:
        bench.submit(node("n"))
        name = "n"
        for _ in range(3):
            attempt = bench.begin()
            assert attempt.node == name
            grow(bench, attempt, node(name := name + "n"))
            finish(bench, attempt)
        assert run_all(bench) == ["nnnn"]
        assert [found.name for found in bench.hand.run(reading.nodes(REF))] == ["n", "nn", "nnn", "nnnn"]


class TestRefused:
    @pytest.mark.parametrize(
        ("nodes", "before", "error"),
        [
            ([("a", "nowhere")], (), UnknownDependency),
            ([("a",), ("a",)], (), DuplicateNode),
            ([("split",)], (), DuplicateNode),
            ([("other",)], (), NodeExists),
            ([("a", "b"), ("b", "a")], (), CycleError),
            ([("a",)], ("other",), InvalidFlow),
            ([("a",)], ("nowhere",), InvalidFlow),
            ([("a", "other")], ("join",), InvalidFlow),
            ([], (), InvalidFlow),
        ],
    )
    def test_what_cannot_be_added_is_reported(
        self, bench: Bench, node: Any, nodes: Any, before: Any, error: type[GlideMQError]
    ) -> None:
        bench.submit(node("split"), node("join", "split"), node("other", queue="spark"))
        attempt = bench.begin()
        jobs = set(bench.client.keys("*:job:*"))
        with pytest.raises(error):
            grow(bench, attempt, *(node(*names) for names in nodes), before=before)
        finish(bench, attempt)
        assert set(bench.client.keys("*:job:*")) == jobs
        assert sorted(run_all(bench)) == ["join", "other"]
        bench.hand.run(sweep([ETL], bench))
        assert leftovers(bench) == []

    def test_a_refused_call_adds_nothing_and_the_others_do(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"), node("taken", "split"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"))
        with pytest.raises(NodeExists, match="taken"):
            grow(bench, attempt, *(node(f"x{n}") for n in range(60)), node("taken"))
        grow(bench, attempt, node("x3"))  # the name was not taken by the call that failed
        finish(bench, attempt)
        assert sorted(run_all(bench)) == ["a", "taken", "x3"]
        assert status(bench) == ("completed", 4, 4, 0)
        assert len(bench.client.keys("*:job:*")) == 4

    def test_a_lost_attempt_adds_nothing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        bench.call(cancel_flow(ETL, "f", "why", bench.now))
        with pytest.raises(LeaseLost):
            grow(bench, attempt, node("a"))

    def test_a_flow_that_is_full_is_reported(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        bench.client.hset("glide:{etl}:gmo:flow:f", "total", 100_000)
        with pytest.raises(FlowTooLarge, match="100,000"):
            grow(bench, bench.begin(), node("a"))


class TestLost:
    def test_what_a_failed_attempt_staged_is_swept(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        grow(bench, attempt, *(node(f"a{n}") for n in range(120)))
        bench.fail(attempt)
        assert status(bench) == ("failed", 1, 0, 1)
        assert bench.hand.run(sweep([ETL], bench)) is False
        assert leftovers(bench) == []
        assert bench.client.keys("*:job:*") == ["glide:{etl}:job:f~split"]

    def test_the_next_attempt_begins_from_the_start(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        first = bench.begin()
        grow(bench, first, *(node(f"a{n}") for n in range(120)))
        bench.fail(first, 2)
        bench.raw("glidemq_promote", [ETL.key("scheduled"), ETL.key("stream"), ETL.key("events")], bench.now)
        second = bench.begin()
        with pytest.raises(LeaseLost):
            grow(bench, first, node("b"))
        grow(bench, second, *(node(f"a{n}") for n in range(2)))
        finish(bench, second)
        assert sorted(run_all(bench)) == ["a0", "a1"]
        assert status(bench) == ("completed", 3, 3, 0)
        assert len(bench.client.keys("*:job:*")) == 3

    def test_an_attempt_that_stages_nothing_drops_what_an_earlier_one_staged(
        self, bench: Bench, node: Any
    ) -> None:
        bench.submit(node("split"))
        first = bench.begin()
        grow(bench, first, node("a"))
        bench.fail(first, 2)
        bench.raw("glidemq_promote", [ETL.key("scheduled"), ETL.key("stream"), ETL.key("events")], bench.now)
        finish(bench, bench.begin())
        assert status(bench) == ("completed", 1, 1, 0)
        bench.hand.run(sweep([ETL], bench))
        assert leftovers(bench) == []
        assert bench.client.keys("*:job:*") == ["glide:{etl}:job:f~split"]

    def test_a_long_attempt_keeps_what_it_staged(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"))
        bench.now += 3_600_000
        assert bench.hand.run(sweep([ETL], bench)) is False
        finish(bench, attempt)
        assert run_all(bench) == ["a"]


class TestMany:
    @pytest.mark.long
    @pytest.mark.parametrize("died_after", sampled(range(12)))
    def test_many_nodes_join_together_whichever_call_is_the_last(
        self, bench: Bench, node: Any, died_after: int
    ) -> None:
        bench.submit(node("split"), node("join", "split"))
        attempt = bench.begin()
        many = [node(f"a{n}", queue="spark" if n % 2 else "etl") for n in range(130)]
        grow(bench, attempt, *many, before=("join",))
        bench.finish(attempt)
        bench.hand.run_until(advance(REF, bench), died_after)
        assert status(bench)[0] == "running"
        bench.hand.run(advance(REF, bench))
        ran = run_all(bench)
        assert len(ran) == 131
        assert ran[-1] == "join"
        assert status(bench) == ("completed", 132, 132, 0)
        assert leftovers(bench) == []

    @pytest.mark.parametrize("died_after", sampled(range(13)))
    def test_staging_that_died_is_repeated(self, bench: Bench, node: Any, died_after: int) -> None:
        bench.submit(node("split"), node("join", "split"))
        attempt = bench.begin()
        many = [node(f"a{n}") for n in range(130)]
        bench.hand.run_until(add_nodes("glide", attempt, many, ("join",), bench), died_after)
        grow(bench, attempt, *many, before=("join",))
        finish(bench, attempt)
        assert run_all(bench)[-1] == "join"
        assert status(bench) == ("completed", 132, 132, 0)

    @pytest.mark.long
    @pytest.mark.parametrize("died_after", sampled(range(13)))
    def test_half_of_a_growth_adds_nothing(self, bench: Bench, node: Any, died_after: int) -> None:
        bench.submit(node("split"), node("join", "split"))
        attempt = bench.begin()
        many = [node(f"a{n}") for n in range(130)]
        bench.hand.run_until(add_nodes("glide", attempt, many, ("join",), bench), died_after)
        finish(bench, attempt)
        total = 132 if died_after >= 12 else 2  # the lookups are six calls, the chunks too
        run_all(bench)
        assert status(bench) == ("completed", total, total, 0)
        bench.hand.run(sweep([ETL], bench))
        assert leftovers(bench) == []
        assert len(bench.client.keys("*:job:*")) == total

    def test_a_cancel_reaches_nodes_that_are_joining(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        grow(bench, attempt, *(node(f"a{n}") for n in range(130)))
        bench.finish(attempt)
        bench.hand.run(cancel(REF, "why", bench))
        assert status(bench) == ("cancelled", 131, 1, 130)
        assert leftovers(bench) == []
        assert bench.client.xlen(ETL.key("stream")) == 0

    def test_a_retry_of_a_flow_that_grew_keeps_what_was_added(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"), node("join", "split"))
        attempt = bench.begin()
        grow(bench, attempt, node("a"), node("b"), before=("join",))
        finish(bench, attempt)
        bench.fail(bench.begin())
        finish(bench, bench.begin())
        assert status(bench) == ("failed", 4, 2, 2)
        bench.call(retry_flow(ETL, "f", bench.now))
        bench.hand.run(advance(REF, bench))
        assert "leaving" not in bench.record()
        assert run_all(bench) == ["a", "join"]
        assert status(bench) == ("completed", 4, 4, 0)

    def test_a_node_with_thousands_of_edges_joins(self, bench: Bench, node: Any) -> None:
        bench.submit(node("split"))
        attempt = bench.begin()
        many = [node(f"a{n}") for n in range(1_200)]
        grow(bench, attempt, *many, node("all", *(made.name for made in many)))
        finish(bench, attempt)
        assert status(bench)[1] == 1_202
        assert bench.client.scard("glide:{etl}:deps:f~all") == 1_200
        assert bench.client.xlen(ETL.key("stream")) == 1_200


@pytest.mark.parametrize("queue", ['a"b', "a\\b", "a\nb", "a,b]", "ü"])
def test_queues_of_any_name_grow_and_are_swept(hand: Hand, redis_client: Any, queue: str) -> None:
    clock = SystemClock()
    place, ref = QueueKeys("glide", queue), FlowRef(QueueKeys("glide", queue), "f")
    spec = FlowSpec("n", [FlowNode("a", queue=queue, job="work")], retention=timedelta(0))
    hand.run(submit_flow("glide", check_flow(spec), "f", "attach", clock))
    hand.run(extend(ref, [FlowNode("b", queue=queue, job="work", after=["a"])], clock))
    assert [node.name for node in hand.run(reading.nodes(ref))] == ["a", "b"]
    hand.run(cancel(ref, "why", clock))
    assert hand.run(reading.status(ref)).failed == 2
    hand.run(sweep([place], clock))
    assert redis_client.keys("*:job:*") == []
