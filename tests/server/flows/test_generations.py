"""Generations: a flow id runs anew, with the same or another specification, and keeps what still holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Context,
    Dependency,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    Ordering,
    Rule,
)
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    FlowExpired,
    FlowNotFound,
    NodeNotFound,
    Superseded,
)
from glidemq_orchestrate.flows import index, nodes
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.index import find_flow
from glidemq_orchestrate.flows.portable import upkeep
from glidemq_orchestrate.flows.submission import begin_next, restart_flow, submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import diamond, node
from tests.profile import sampled
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump, Hand

ETL = QueueKeys("glide", "etl")
STAGED = pytest.mark.parametrize("path", ["staged"], indirect=True)


@pytest.fixture(params=list(REACHES), autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of every flow that a producer submits; STAGED: only what the portable path refuses."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES[request.param])
    return str(request.param)


def end_with_a_failure(flows: FlowProducer, work: Work, flow_id: str = "f") -> None:
    """Run the diamond, in which b fails; it would not fail again."""
    work.ends["b"] = "failed"
    flows.submit(diamond(), flow_id=flow_id).wait(timeout=LONG)
    work.ends.clear()
    work.ran.clear()


@pytest.fixture
def broken(flows: FlowProducer, work: Work) -> FlowProducer:
    """The diamond has failed under the id f."""
    end_with_a_failure(flows, work)
    return flows


class TestCarryingOver:
    def test_what_was_mended_runs_with_what_follows(self, broken: FlowProducer, work: Work) -> None:
        plan = broken.plan(diamond(b={"data": "mended"}), flow_id="f")
        assert (plan.generation, sorted(plan.keeps), plan.drops) == (1, ["a", "c", "e"], [])
        assert plan.runs == {"b": "changed: data", "d": "was failed"}
        flow = broken.submit(diamond(b={"data": "mended"}), flow_id="f", on_existing="retry_failed")
        outcome = flow.wait(timeout=LONG)
        assert work.ran == ["b", "d"]
        assert outcome.status.completed == outcome.status.total == 5
        assert outcome.results == {name: f"{name}!" for name in "abcde"}
        assert work.inputs["d"] == {"b": "b!", "c": "c!"}
        assert (flow.generation, flow.id, flow.status().state) == (1, "f", "completed")

    def test_what_does_not_shape_a_result_is_no_change(self, flows: FlowProducer, work: Work) -> None:
        options = JobOptions(attempts=3, timeout=timedelta(hours=1), priority=7)
        changes: list[tuple[str, dict[str, Any]]] = [
            ("bd", {}),
            ("bd", {"c": {"options": options}}),
            ("bd", {"a": {"queue_timeout": timedelta(hours=1), "on_failure": "ignore"}}),
            ("bde", {"e": {"data": 1}}),
            ("bcd", {"c": {"rule": Rule.ALL_DONE}}),
            ("bcd", {"c": {"after": [Dependency("a", "ignore")]}}),
            ("bcd", {"c": {"after": []}}),
            ("abcd", {"a": {"data": 1}}),
        ]
        for number, (ran, change) in enumerate(changes):
            flow_id = f"f{number}"
            end_with_a_failure(flows, work, flow_id)
            flow = flows.submit(diamond(**change), flow_id=flow_id, on_existing="retry_failed")
            assert flow.wait(timeout=LONG).status.completed == 5
            assert sorted(work.ran) == list(ran), change
            assert flow.generation == (1 if change else 0), change

    @pytest.mark.usefixtures("frequent_chores")
    def test_new_nodes_run_and_others_go(
        self, broken: FlowProducer, work: Work, redis_client: Any, eventually: Eventually
    ) -> None:
        last = node("last", "c", "new", rule=Rule.ALL_DONE)
        spec = FlowSpec("n", [*diamond().nodes[:3], node("new", "a"), last])
        plan = broken.plan(spec, flow_id="f")
        assert (sorted(plan.keeps), sorted(plan.drops)) == (["a", "c"], ["d", "e"])
        assert plan.runs == {"b": "was failed", "new": "new", "last": "new"}
        flow = broken.submit(spec, flow_id="f", on_existing="retry_failed")
        outcome = flow.wait(timeout=LONG)
        assert sorted(work.ran) == ["b", "last", "new"]
        assert set(outcome.results) == set(states(flow)) == {"a", "b", "c", "new", "last"}
        eventually(lambda: len(redis_client.keys("glide:{etl}:job:*")) == 5)  # those of d and e are gone
        refs = {f"glide:{{etl}}:{one.job_id}" for one in flow.nodes() if "a" in one.after}
        assert redis_client.smembers(ETL.parents(flow.node("a").job_id)) == refs

    def test_through_several_generations(self, broken: FlowProducer, work: Work) -> None:
        for number in range(1, 4):
            flow = broken.submit(diamond(d={"data": number}), flow_id="f", on_existing="retry_failed")
            assert flow.wait(timeout=LONG).results == {name: f"{name}!" for name in "abcde"}
            assert flow.generation == number
        assert work.ran == ["b", "d", "d", "d"]
        plan = broken.plan(diamond(d={"data": 3}), flow_id="f")
        assert (plan.generation, plan.runs, len(plan.keeps)) == (3, {}, 5)

    @STAGED
    def test_what_is_kept_runs_again_by_hand_with_what_follows(
        self, broken: FlowProducer, work: Work
    ) -> None:
        """The edges between nodes that are kept are those of the generation before."""
        flow = broken.submit(diamond(e={"data": "mended"}), flow_id="f", on_existing="retry_failed")
        assert flow.wait(timeout=LONG).status.completed == 5
        again = broken.submit(diamond(e={"data": "again"}), flow_id="f", on_existing="retry_failed")
        assert again.wait(timeout=LONG).status.completed == 5
        work.ran.clear()
        again.rerun("a")
        assert again.wait(timeout=LONG).status.completed == 5
        assert sorted(work.ran) == list("abcd")
        assert work.ran[0] == "a"
        assert work.ran[-1] == "d"

    def test_another_home_queue_and_name(self, broken: FlowProducer, run_worker: RunWorker) -> None:
        run_worker(["else"], {"work": lambda ctx: f"{ctx.node}?"})
        nodes = [replace(one, queue="else") if one.name != "e" else one for one in diamond().nodes]
        spec = FlowSpec("other", nodes, labels={"a": "b"})
        flow = broken.submit(spec, flow_id="f", on_existing="retry_failed")
        outcome = flow.wait(timeout=LONG)
        assert outcome.results == {name: f"{name}?" for name in "abcd"} | {"e": "e!"}
        assert (outcome.status.name, outcome.status.home, flow.home) == ("other", "etl", "etl")
        assert [one.generation for one in broken.list(label=("a", "b"))] == [1]

    @pytest.mark.parametrize("how", ["attach", "retry_failed"])
    def test_with_another_home_queue_it_is_submitted_as_often_as_you_like(
        self, broken: FlowProducer, work: Work, run_worker: RunWorker, how: Any
    ) -> None:
        nodes = [replace(one, queue="else") if one.name != "e" else one for one in diamond().nodes]
        spec = FlowSpec("n", nodes)
        broken.submit(spec, flow_id="f", on_existing="retry_failed")
        again = broken.submit(spec, flow_id="f", on_existing=how)
        run_worker(["else"], {"work": lambda ctx: f"{ctx.node}?"})
        assert again.wait(timeout=LONG).status.completed == 5
        ended = broken.submit(spec, flow_id="f", on_existing=how)
        assert (ended.generation, ended.home, ended.status().state) == (1, "etl", "completed")
        with pytest.raises(FlowConflict, match=r"nodes that differ: e \(queue\)"):
            broken.submit(FlowSpec("n", [*nodes[:-1], replace(nodes[-1], queue="else")]), flow_id="f")

    def test_where_nothing_is_left_to_run_it_has_completed(self, broken: FlowProducer, work: Work) -> None:
        nodes = [one for one in diamond().nodes if one.name not in "bd"]
        flow = broken.submit(FlowSpec("n", nodes), flow_id="f", on_existing="retry_failed")
        assert flow.wait(timeout=LONG).results == {name: f"{name}!" for name in "ace"}
        assert work.ran == []
        assert flow.restart() == "running"
        assert flow.wait(timeout=LONG).status.completed == 3

    def test_from_some_nodes_on(self, broken: FlowProducer, work: Work) -> None:
        flow = broken.get("f")
        with pytest.raises(NodeNotFound, match="without a node x"):
            flow.restart(nodes=["e", "x"])
        with pytest.raises(ConfigurationError, match="must be a list"):
            flow.restart(nodes="e")
        assert (flow.generation, work.ran) == (0, [])
        flow.restart(nodes=["e"], idempotency_key="a click")  # b had failed, and d follows it
        outcome = flow.wait(timeout=LONG)
        assert sorted(work.ran) == ["b", "d", "e"]
        assert outcome.results == {name: f"{name}!" for name in "abcde"}
        work.ran.clear()
        flow.restart(nodes=["e"], idempotency_key="a click")  # the same one
        flow.restart(nodes=["c"])
        outcome = flow.wait(timeout=LONG)
        assert (flow.generation, sorted(work.ran)) == (2, ["c", "d"])
        assert outcome.results == {name: f"{name}!" for name in "abcde"}

    def test_many_nodes_and_wide_ones(self, flows: FlowProducer, work: Work, path: str) -> None:
        count = 1_200 if path == "staged" else 600  # more than a page of each
        names = [f"n{n}" for n in range(count)]
        nodes = [node("a"), *(node(name, "a") for name in names), node("end", *names)]
        work.ends["end"] = "failed"
        flows.submit(FlowSpec("n", nodes), flow_id="f").wait(timeout=LONG)
        work.ends.clear()
        nodes[-1] = replace(nodes[-1], data=1)
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f", on_existing="retry_failed")
        assert flow.wait(timeout=LONG).status.completed == count + 2
        assert work.ran.count("end") == 2
        assert len(work.ran) == count + 3
        assert len(work.inputs["end"]) == count

    @STAGED
    def test_a_node_that_added_nodes_adds_them_again(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        ran: list[str] = []

        def grow(ctx: Any) -> None:
            ran.append("grow")
            ctx.flow.map_over(FlowNode("part", queue="etl", job="part"), [1, 2], before=["end"])

        def part(ctx: Context) -> str:
            ran.append(str(ctx.node))
            return str(ctx.node)

        run_worker(["etl"], {"grow": grow, "part": part})
        nodes = [node("grow", job="grow"), node("end", "grow", job="part"), node("side", job="part")]
        flows.submit(FlowSpec("n", nodes), flow_id="f").wait(timeout=LONG)
        changed = FlowSpec("n", [*nodes[:2], replace(nodes[2], data=1)])
        assert flows.plan(changed, flow_id="f").runs == {
            "grow": "adds nodes",
            "end": "follows grow",
            "side": "changed: data",
        }
        ran.clear()
        flow = flows.submit(changed, flow_id="f", on_existing="retry_failed")
        assert flow.wait(timeout=LONG).status.completed == 5
        assert sorted(ran) == ["end", "grow", "part[0]", "part[1]", "side"]


class TestRestarting:
    def test_nothing_is_kept(self, broken: FlowProducer, work: Work) -> None:
        flow = broken.submit(diamond(), flow_id="f", on_existing="restart")
        assert flow.wait(timeout=LONG).status.completed == 5
        assert sorted(work.ran) == list("abcde")
        assert flow.generation == 1

    def test_the_same_request_finds_what_it_began(self, broken: FlowProducer, work: Work) -> None:
        for _ in range(3):
            flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 1")
            flow.wait(timeout=LONG)
            assert flow.generation == 1
        assert len(work.ran) == 5
        flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 2")
        assert flow.generation == 2
        flow.wait(timeout=LONG)
        old = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 1")
        assert old.generation == 1
        with pytest.raises(Superseded, match="generation 1 of flow f was superseded by generation 2"):
            old.wait(timeout=LONG)
        assert len(work.ran) == 10

    def test_the_first_submission_has_a_request_too(self, flows: FlowProducer, work: Work) -> None:
        for _ in range(2):
            flow = flows.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r")
            flow.wait(timeout=LONG)
            assert (flow.generation, flow.status().idempotency_key) == (0, "r")
        assert len(work.ran) == 5

    def test_every_option_and_policy_is_kept(self, flows: FlowProducer, work: Work, path: str) -> None:
        hour = timedelta(hours=1)
        ordered = JobOptions(ordering=Ordering("k") if path == "staged" else None)
        either = [Dependency("failed.b", "skip"), Dependency("c", "skip")]
        nodes = [
            node("skipped.a", options=JobOptions(attempts=3, delay=timedelta(milliseconds=5), priority=3)),
            node("failed.b", on_failure="ignore"),
            node("c", Dependency("skipped.a", "all_done"), "failed.b", rule=Rule.ALL_DONE),
            node("d", "failed.b", options=ordered),
            node("e", *either, queue_timeout=hour),
        ]
        spec = FlowSpec("n", nodes, labels={"a": "b"}, deadline=hour, retention=hour, fail_fast=True)
        flow = flows.submit(spec, flow_id="f")
        before = flow.wait(timeout=LONG)
        ends = states(flow)
        assert flow.restart() == "running"
        after = flow.wait(timeout=LONG)
        assert states(flow) == ends
        assert (after.results, dict(after.status.labels)) == (before.results, {"a": "b"})
        checked = check_flow(spec)
        again = flows.submit(spec, flow_id="f")
        assert again.generation == 1
        # Nothing differs from the specification, although all of it was read back from the server.
        assert again.history()[1].total == len(checked.nodes)
        changed = replace(spec, deadline=2 * hour)
        with pytest.raises(FlowConflict) as caught:
            flows.submit(changed, flow_id="f")
        assert (caught.value.differences, caught.value.fields) == ({}, ("deadline",))

    @STAGED
    def test_what_was_added_from_outside_stays(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
        flow.wait(timeout=LONG)
        flow.extend([node("b", "a")])
        flow.wait(timeout=LONG)
        for _ in range(2):
            flow.restart()
            assert set(flow.wait(timeout=LONG).results) == {"a", "b"}
        assert work.ran == ["a", "b"] * 3
        assert flow.extend([node("b", "a")]) == "completed"  # a repeat


class TestTheOneBefore:
    def test_it_is_refused_everything(self, broken: FlowProducer, dump: Dump, eventually: Eventually) -> None:
        old = broken.get("f")
        new = broken.submit(diamond(), flow_id="f", on_existing="restart")
        new.wait(timeout=LONG)
        before = dump()
        for call in (
            lambda: old.wait(timeout=LONG), old.result, old.results, old.nodes, old.retry_failed, old.restart,
            lambda: old.node("a"), lambda: old.results(["a"]), lambda: old.node("no such node"),
            lambda: old.cancel("an old on_kill"), lambda: old.extend([node("z")]), lambda: list(old.watch()),
            lambda: new.cancel("why", generation=0),
        ):  # fmt: skip
            with pytest.raises(Superseded, match="generation 0 of flow f was superseded"):
                call()
        assert old.status().superseded_by == 1
        assert broken.get("f").generation == 1
        with pytest.raises(FlowNotFound, match="flow f has no generation 7: the current one is 1"):
            new.cancel("why", generation=7)
        with pytest.raises(FlowNotFound, match="flow f has no generation a value of type int"):
            new.cancel("why", generation=10**5000)  # too long to be shown as a number
        assert new.cancel("too late", generation=1) == "completed"
        record = "glide:{etl}:gmo:flow:" + new._ref.flow_id
        assert dump()[record] == before[record]

    @pytest.mark.usefixtures("frequent_chores")
    def test_its_nodes_are_refused_by_name_too(
        self, clients: Clients, work: Work, redis_client: Any, eventually: Eventually
    ) -> None:
        old = clients.flows().submit(FlowSpec("n", [node("a")]), flow_id="f")
        old.wait(timeout=LONG)
        assert old.results(["a"]) == {"a": "a!"}
        clients.flows().get("f").restart()

        def check() -> None:
            for reading in (old.node, "a"), (old.results, ["a"]):
                with pytest.raises(Superseded, match="generation 0 of flow f was superseded by generation 1"):
                    reading[0](reading[1])

        check()
        eventually(lambda: not redis_client.keys("glide:{etl}:job:f~*"))
        check()  # its jobs were removed

    def test_one_that_begins_between_two_reads_of_results(
        self, flows: FlowProducer, work: Work, hand: Hand
    ) -> None:
        old = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
        old.wait(timeout=LONG)
        requests = hand.steps(nodes.node_results(old._ref, ["a"]))
        next(requests)
        next(requests)
        flows.get("f").restart()
        with pytest.raises(Superseded):
            list(requests)

    def test_a_handler_that_comes_back_changes_nothing(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        held, seen = threading.Event(), list[int]()

        def work(ctx: Context) -> int:
            seen.append(ctx.generation)
            if ctx.generation == 0:
                held.wait(20)
            return ctx.generation

        run_worker(["etl"], {"work": work}, concurrency=4)
        flow = flows.submit(FlowSpec("n", [node("a", job="work")]), flow_id="f")
        eventually(lambda: seen == [0])
        flow.restart()
        assert flow.wait(timeout=LONG).results == {"a": 1}
        held.set()
        flow.restart()
        assert flow.wait(timeout=LONG).results == {"a": 2}
        assert [one.state for one in flow.history()] == ["cancelled", "completed", "completed"]

    def test_a_watcher_is_told(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
        work.held["a"] = threading.Event()
        flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
        eventually(lambda: work.ran == ["a"])
        told: list[BaseException] = []

        def watch() -> None:
            try:
                list(flow.watch(timeout=LONG))
            except Superseded as exc:
                told.append(exc)

        watcher = threading.Thread(target=watch)
        watcher.start()
        new = flows.submit(FlowSpec("n", [node("a", data=1)]), flow_id="f", on_existing="restart")
        watcher.join(20)
        assert str(told[0]) == "generation 0 of flow f was superseded by generation 1"
        work.held.pop("a").set()
        *_, last = new.watch(timeout=LONG)
        assert (last.state, last.flow) == ("completed", "f")  # type: ignore[union-attr]

    @pytest.mark.usefixtures("frequent_chores")
    def test_its_jobs_go_and_its_summary_stays(
        self, broken: FlowProducer, redis_client: Any, eventually: Eventually
    ) -> None:
        for request in ("one", "two"):
            flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key=request)
            flow.wait(timeout=LONG)
        eventually(lambda: len(redis_client.keys("glide:{etl}:job:*")) == 5)
        eventually(lambda: not redis_client.keys("glide:{etl}:gmo:flow:f:*"))
        eventually(lambda: not redis_client.keys("glide:{etl}:gmo:flow:f{1.*}:*"))
        eventually(lambda: not redis_client.keys("glide:{etl}:gmo:portable:*:f{1.*}"))
        fields = ("generation", "state", "completed", "superseded_by", "idempotency_key")
        assert [tuple(getattr(one, name) for name in fields) for one in flow.history()] == [
            (0, "failed", 3, 1, ""),
            (1, "completed", 5, 2, "one"),
            (2, "completed", 5, None, "two"),
        ]
        assert [(one.id, one.generation) for one in broken.list()] == [("f", 2)]

    def test_a_hundred_are_kept(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
        for _ in range(105):
            flow.wait(timeout=LONG)
            flow.restart()
        flow.wait(timeout=LONG)
        assert flow.generation == 105
        numbers = [one.generation for one in flow.history()]
        assert numbers[-100:] == list(range(6, 106))
        assert len(numbers) < 110


@pytest.mark.usefixtures("frequent_chores")
def test_after_its_retention_a_flow_begins_again_and_leaves_nothing(  # noqa: PLR0917
    flows: FlowProducer, work: Work, hand: Hand, redis_client: Any, eventually: Eventually, path: str
) -> None:
    def is_expired() -> bool:
        return bool(redis_client.hexists(ETL.flow(flow._ref.flow_id), "expired_at"))

    spec = FlowSpec("n", [node("a"), node("b", "a")], retention=timedelta(milliseconds=300))
    flow = flows.submit(spec, flow_id="f")
    for number in range(3):
        flow.wait(timeout=LONG)
        eventually(is_expired)
        eventually(lambda: redis_client.ttl("glide:gmo:home:{f}") > 0)
        for call in (flow.restart, partial(flow.node, "a"), partial(flow.results, ["a"])):
            with pytest.raises(FlowExpired):
                call()
        assert len(flow.history()) == number + 1
        flow = flows.submit(spec, flow_id="f", on_existing="restart", idempotency_key=str(number))
        assert redis_client.ttl("glide:gmo:home:{f}") == -1
        assert redis_client.ttl(ETL.generations("f")) == -1
    flow.wait(timeout=LONG)
    eventually(is_expired)
    eventually(lambda: redis_client.ttl(ETL.generations("f")) > 0)
    eventually(lambda: len(redis_client.keys("*gmo:flow:*")) == 4)
    eventually(lambda: redis_client.zcard("glide:{etl}:gmo:portable:expiring") == 0)  # this goes last
    keys = [*redis_client.keys("*gmo:flow:*"), ETL.generations("f")]
    assert all(redis_client.ttl(key) > 0 for key in keys)
    redis_client.unlink(*keys)  # as they will be in 30 days

    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 31 * 24 * 3_600_000

    while hand.run(index.sweep([ETL], Later())):
        pass
    if path == "portable":  # there the claim ends by itself
        assert redis_client.unlink("glide:gmo:home:{f}") == 1
    assert redis_client.keys("*gmo:home:*") == []
    assert redis_client.zcard("glide:{etl}:gmo:portable:expiring") == 0
    assert redis_client.zcard("glide:{etl}:gmo:expiring") == 0


@pytest.mark.parametrize("on_existing", ["restart", "retry_failed"])
def test_a_beginning_that_died_after_any_call_is_completed_by_a_repeat(
    flows: FlowProducer, work: Work, hand: Hand, on_existing: Any
) -> None:
    for calls in sampled(range(24)):
        flow_id = f"f{calls}"
        end_with_a_failure(flows, work, flow_id)
        spec = replace(check_flow(diamond(b={"data": 1})), request="r")
        hand.run_until(submit_flow("glide", spec, flow_id, on_existing, SystemClock()), calls)
        hand.run(submit_flow("glide", spec, flow_id, on_existing, SystemClock()))
        flow = flows.get(flow_id)
        assert flow.wait(timeout=LONG).status.completed == 5, calls
        assert flow.generation == 1
        assert sorted(work.ran) == list("abcde" if on_existing == "restart" else "bd"), calls


def test_what_completes_between_a_kill_and_the_repeat_is_kept_too(
    flows: FlowProducer, work: Work, hand: Hand, eventually: Eventually
) -> None:
    for calls in sampled(range(5, 12)):
        flow_id = f"f{calls}"
        work.ran.clear()
        work.held |= {"a": threading.Event(), "e": threading.Event()}
        flow = flows.submit(diamond(), flow_id=flow_id)
        eventually(lambda: sorted(work.ran) == ["a", "e"])
        mended = check_flow(diamond(b={"data": 1}))
        hand.run_until(submit_flow("glide", mended, flow_id, "retry_failed", SystemClock()), calls)
        if calls < 10:  # the next generation has not begun
            work.held["a"].set()
            eventually(partial(has_completed, flow, "c"))
        hand.run(submit_flow("glide", mended, flow_id, "retry_failed", SystemClock()))
        for event in work.held.values():
            event.set()
        outcome = flows.get(flow_id).wait(timeout=LONG)
        assert (outcome.status.completed, outcome.status.total) == (5, 5), calls
        assert outcome.results == {name: f"{name}!" for name in "abcde"}
        assert work.ran.count("a") == (1 if calls < 10 else 2), calls


def has_completed(flow: Flow, name: str) -> bool:
    return flow.node(name).state is JobState.COMPLETED


@pytest.mark.parametrize("on_existing", ["restart", "retry_failed"])
def test_a_beginning_that_is_given_up_leaves_nothing(
    broken: FlowProducer, hand: Hand, on_existing: Any, redis_client: Any, path: str
) -> None:
    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 16 * 60_000

    def of_next() -> list[str]:
        return [key for key in redis_client.keys("*") if "f{1." in key or "f@1." in key]

    nodes = [*diamond(b={"data": 1}).nodes, *(node(f"n{n}", "a") for n in range(60))]
    making = submit_flow("glide", check_flow(FlowSpec("n", nodes)), "f", on_existing, SystemClock())
    hand.run_until(making, 9 if path == "staged" else 70)
    assert len(of_next()) > 40
    while hand.run(index.sweep([ETL], Later())):
        pass
    hand.run(upkeep.sweep(ETL, Later()))
    assert of_next() == []
    assert [one.generation for one in broken.list()] == [0]
    assert broken.get("f").status().state == "failed"
    assert redis_client.smembers("glide:{etl}:parents:f~a") == {"glide:{etl}:f~b", "glide:{etl}:f~c"}


def test_two_who_mend_differently_begin_one_after_the_other(
    broken: FlowProducer, hand: Hand, work: Work
) -> None:
    """Both stage generation 1; the second finds that it is not, and begins generation 2."""
    place = hand.run(find_flow("glide", "f"))
    specs = [check_flow(diamond(b={"data": number})) for number in range(2)]
    refs = [hand.run(begin_next(place, spec, "retry_failed", SystemClock())) for spec in specs]
    assert [ref.generation for ref in refs] == [1, 2]
    assert broken.get("f").wait(timeout=LONG).status.completed == 5


@STAGED
def test_an_extension_that_comes_meanwhile_is_not_lost(flows: FlowProducer, work: Work, hand: Hand) -> None:
    flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    flow.wait(timeout=LONG)
    beginning = restart_flow(flow._ref, "", SystemClock())
    request = next(beginning)
    while "gmo_stage_flow" not in str(request):
        request = beginning.send(hand.answers(request))
    flow.extend([node("b", "a")])
    flow.wait(timeout=LONG)
    while True:
        try:
            request = beginning.send(hand.answers(request))
        except StopIteration:
            break
    assert set(flows.get("f").wait(timeout=LONG).results) == {"a", "b"}


def test_a_flow_that_is_being_staged_is_mended_too(
    flows: FlowProducer, hand: Hand, work: Work, path: str
) -> None:
    half = check_flow(FlowSpec("n", [node(f"n{n}") for n in range(130)]))
    reach, calls = REACHES[path], 8 if path == "staged" else 100
    hand.run_until(submit_flow("glide", half, "f", "attach", SystemClock(), reach=reach), calls)
    assert flows.get("f").status().state == "staging"
    flow = flows.submit(diamond(), flow_id="f", on_existing="restart")
    assert flow.wait(timeout=LONG).status.completed == 5
    assert flow.history()[0].state == "cancelled"
    assert sorted(work.ran) == list("abcde")


class TestRefusals:
    def test_another_specification_is_not_attached_to(self, broken: FlowProducer) -> None:
        with pytest.raises(FlowConflict, match=r"nodes that differ: b \(data\)"):
            broken.submit(diamond(b={"data": 1}), flow_id="f")

    def test_a_conflict_says_which_settings_of_the_flow_differ(
        self, flows: FlowProducer, redis_client: Any
    ) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"name": "m"}, "differs in: name"),
            ({"deadline": timedelta(hours=1)}, "differs in: deadline"),
            ({"fail_fast": True, "deadline": None}, "differs in: deadline, fail_fast"),
            (
                {"name": "m", "nodes": [node("a", data=1)]},
                r"differs in: name; nodes that differ: a \(data\)",
            ),
            ({"labels": {"a": "b"}}, ""),
            ({"retention": timedelta(hours=1)}, ""),
        ]
        for changed, text in cases:
            redis_client.flushdb()
            spec = FlowSpec("n", [node("a")], deadline=timedelta(hours=2))
            flows.submit(spec, flow_id="f")
            other = replace(spec, **changed)
            if not text:  # it is the same flow
                assert flows.submit(other, flow_id="f").status().labels == {}
                continue
            with pytest.raises(FlowConflict, match=f"^flow id f belongs to another flow; {text}$") as caught:
                flows.submit(other, flow_id="f")
            fields = text.partition(";")[0].removeprefix("differs in: ")
            assert list(caught.value.fields) == fields.split(", ")

    def test_a_request_that_has_begun_another_specification(self, broken: FlowProducer, dump: Dump) -> None:
        broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r").wait(timeout=LONG)
        before = dump()
        with pytest.raises(FlowConflict, match="request r began generation 1 of flow f with another spec"):
            broken.submit(diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="r")
        assert dump() == before
        mended = broken.submit(
            diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="s"
        )
        assert mended.generation == 2
        with pytest.raises(FlowConflict, match="request r began generation 1"):
            broken.submit(diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="r")

    def test_odd_requests(self, flows: FlowProducer, dump: Dump) -> None:
        wrong: list[Any] = ["x" * 257, "a\nb", 7]
        for request_ in wrong:
            before = dump()
            with pytest.raises(
                ConfigurationError, match=r"idempotency_key .* is not valid|idempotency_key must"
            ):
                flows.submit(diamond(), flow_id="f", idempotency_key=request_)
            assert dump() == before

    def test_a_request_that_has_begun_a_generation_for_other_nodes(
        self, broken: FlowProducer, dump: Dump, path: str
    ) -> None:
        flow = broken.get("f")
        flow.restart(nodes=["c", "e"], idempotency_key="r")
        flow.wait(timeout=LONG)
        for _ in range(2):  # a repeat, by a handle of then and by one of now
            again = broken.get("f")
            assert again.restart(nodes=("e", "c", "e"), idempotency_key="r") == "completed"
            assert flow.restart(nodes=["e", "c"], idempotency_key="r") == "completed"
            assert (again.generation, flow.generation) == (1, 1)
        assert [one.idempotency_key for one in flow.history()] == ["", "r"]
        before = dump()
        for other in (["c"], ["a"], None):
            with pytest.raises(
                FlowConflict, match="request r began generation 1 of flow f to rerun other nodes"
            ):
                flow.restart(nodes=other, idempotency_key="r")
        with pytest.raises(FlowConflict, match="to rerun other nodes"):
            broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r")
        assert dump() == before
        flow.restart(idempotency_key="all")
        flow.wait(timeout=LONG)
        with pytest.raises(FlowConflict, match="request all began generation 2"):
            flow.restart(nodes=["c"], idempotency_key="all")
        assert flow.restart(idempotency_key="all") == "completed"
        assert flow.generation == 2

    def test_a_request_needs_an_id(self, flows: FlowProducer, dump: Dump) -> None:
        before = dump()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="idempotency_key needs a flow_id"):
                flows.submit(diamond(), on_existing="restart", idempotency_key="r")
        with pytest.raises(ConfigurationError, match="flow id '' is not valid"):
            flows.submit(diamond(), flow_id="")
        assert dump() == before
        assert len(flows.submit(diamond(), flow_id=None).id) == 32

    def test_arguments_of_the_wrong_type_and_nothing_to_restart(
        self, broken: FlowProducer, dump: Dump
    ) -> None:
        flow: Any = broken.get("f")
        before = dump()
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: flow.restart(nodes=[]), "nodes is empty"),
            (lambda: flow.restart(nodes=iter(())), "nodes is empty"),
            (lambda: flow.restart(nodes=[5]), "nodes must be a list of node names, got 5"),
            (lambda: flow.restart(generation=True), "generation must be int or None, got True"),
            (lambda: flow.restart(idempotency_key=None), "idempotency_key of type NoneType"),
            (lambda: flow.restart(idempotency_key=0), "idempotency_key of type int"),
            (lambda: flow.cancel(generation=False), "generation must be int or None, got False"),
            (lambda: flow.cancel(generation="0"), "generation must be int or None, got '0'"),
            (lambda: flow.retry_failed(generation=0.0), r"generation must be int or None, got 0\.0"),
            (lambda: flow.rerun("a", dependents="no"), "dependents must be bool, got 'no'"),
            (lambda: flow.rerun(5), "node must be str, got 5"),
            (lambda: flow.rerun(nodes=["a", None]), "nodes must be a list of node names, got None"),
            (lambda: flow.rerun("a", generation=True), "generation must be"),
            (lambda: flow.rerun(error=5), "error must be str, got 5"),
            (lambda: flow.cancel_node(pattern=b"a"), "pattern must be str"),
            (lambda: flow.complete_node(b"a"), "node must be str"),
            (lambda: flow.skip_node("a", state=None), "state must be str"),
        ]
        for call, message in refused:
            with pytest.raises(ConfigurationError, match=message):
                call()
        assert dump() == before
        assert (flow.generation, flow.status().state) == (0, "failed")

    def test_every_change_may_be_fenced(self, broken: FlowProducer, work: Work, dump: Dump) -> None:
        flow = broken.get("f")
        assert flow.restart(generation=0, idempotency_key="r") == "running"
        flow.wait(timeout=LONG)
        again = broken.get("f")
        assert (
            again.restart(generation=0, idempotency_key="r") == "completed"
        )  # a repeat of what has been done
        before = dump()
        refused: list[Callable[[], Any]] = [
            lambda: again.restart(generation=0),
            lambda: again.retry_failed(generation=0),
            lambda: again.rerun("a", generation=0),
            lambda: again.complete_node("a", 1, generation=0),
            lambda: again.skip_node("a", generation=0),
            lambda: again.cancel_node("a", generation=0),
        ]
        for call in refused:
            with pytest.raises(Superseded, match="generation 0 of flow f was superseded: 1 is the current"):
                call()
        with pytest.raises(FlowNotFound, match="has no generation 2"):
            again.rerun("a", generation=2)
        assert dump() == before
        assert again.rerun("e", generation=1) == ["e"]

    def test_no_user_can_name_a_generation(self, broken: FlowProducer) -> None:
        flow = broken.submit(diamond(), flow_id="f", on_existing="restart")
        with pytest.raises(ConfigurationError, match="is not valid"):
            broken.get(flow._ref.flow_id)

    def test_a_plan_for_a_flow_that_never_was(self, flows: FlowProducer) -> None:
        with pytest.raises(FlowNotFound):
            flows.plan(diamond(), flow_id="f")
