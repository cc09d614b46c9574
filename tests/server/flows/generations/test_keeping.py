"""The next generation keeps the results that still hold, and runs the rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Context,
    Dependency,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Rule,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    NodeNotFound,
)
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import NEAR, diamond, node
from tests.server.conftest import STAGED
from tests.server.flows.generations.conftest import end_with_a_failure
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")


ETL = QueueKeys("glide", "etl")


def test_what_was_mended_runs_with_what_follows(broken: FlowProducer, work: Work) -> None:
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


def test_what_does_not_shape_a_result_is_no_change(flows: FlowProducer, work: Work) -> None:
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
    broken: FlowProducer, work: Work, redis_client: Any, eventually: Eventually
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


def test_through_several_generations(broken: FlowProducer, work: Work) -> None:
    for number in range(1, 4):
        flow = broken.submit(diamond(d={"data": number}), flow_id="f", on_existing="retry_failed")
        assert flow.wait(timeout=LONG).results == {name: f"{name}!" for name in "abcde"}
        assert flow.generation == number
    assert work.ran == ["b", "d", "d", "d"]
    plan = broken.plan(diamond(d={"data": 3}), flow_id="f")
    assert (plan.generation, plan.runs, len(plan.keeps)) == (3, {}, 5)


@STAGED
def test_what_is_kept_runs_again_by_hand_with_what_follows(broken: FlowProducer, work: Work) -> None:
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


def test_another_home_queue_and_name(broken: FlowProducer, run_worker: RunWorker) -> None:
    run_worker([NEAR], {"work": lambda ctx: f"{ctx.node}?"})
    nodes = [replace(one, queue=NEAR) if one.name != "e" else one for one in diamond().nodes]
    spec = FlowSpec("other", nodes, labels={"a": "b"})
    flow = broken.submit(spec, flow_id="f", on_existing="retry_failed")
    outcome = flow.wait(timeout=LONG)
    assert outcome.results == {name: f"{name}?" for name in "abcd"} | {"e": "e!"}
    assert (outcome.status.name, outcome.status.home, flow.home) == ("other", "etl", "etl")
    assert [one.generation for one in broken.list(label=("a", "b"))] == [1]


@pytest.mark.parametrize("how", ["attach", "retry_failed"])
def test_with_another_home_queue_it_is_submitted_as_often_as_you_like(
    broken: FlowProducer, work: Work, run_worker: RunWorker, how: Any
) -> None:
    nodes = [replace(one, queue=NEAR) if one.name != "e" else one for one in diamond().nodes]
    spec = FlowSpec("n", nodes)
    broken.submit(spec, flow_id="f", on_existing="retry_failed")
    again = broken.submit(spec, flow_id="f", on_existing=how)
    run_worker([NEAR], {"work": lambda ctx: f"{ctx.node}?"})
    assert again.wait(timeout=LONG).status.completed == 5
    ended = broken.submit(spec, flow_id="f", on_existing=how)
    assert (ended.generation, ended.home, ended.status().state) == (1, "etl", "completed")
    with pytest.raises(FlowConflict, match=r"nodes that differ: e \(queue\)"):
        broken.submit(FlowSpec("n", [*nodes[:-1], replace(nodes[-1], queue=NEAR)]), flow_id="f")


def test_where_nothing_is_left_to_run_it_has_completed(broken: FlowProducer, work: Work) -> None:
    nodes = [one for one in diamond().nodes if one.name not in "bd"]
    flow = broken.submit(FlowSpec("n", nodes), flow_id="f", on_existing="retry_failed")
    assert flow.wait(timeout=LONG).results == {name: f"{name}!" for name in "ace"}
    assert work.ran == []
    assert flow.restart() == "running"
    assert flow.wait(timeout=LONG).status.completed == 3


def test_from_some_nodes_on(broken: FlowProducer, work: Work) -> None:
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


@pytest.mark.long
def test_many_nodes_and_wide_ones(flows: FlowProducer, work: Work, path: str) -> None:
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
def test_a_node_that_added_nodes_adds_them_again(flows: FlowProducer, run_worker: RunWorker) -> None:
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
