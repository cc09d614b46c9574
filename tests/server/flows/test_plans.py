"""A plan says what the submission then does: what runs, in which generation, or why it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Rule, Skip, Unrecoverable
from glidemq_orchestrate.errors import FlowExpired
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node
from tests.server.conftest import STAGED
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")

ETL = QueueKeys("glide", "etl")


def spec(*nodes: FlowNode, **kw: Any) -> FlowSpec:
    return FlowSpec("n", list(nodes), **kw)


def by_hand(flow: Any) -> None:
    flow.skip_node("b", "not today")
    flow.wait(timeout=LONG)


FLOWS: dict[str, tuple[FlowSpec, dict[str, str], Callable[[Any], None] | None]] = {
    "what follows a failure": (
        spec(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("e")),
        {"b": "failed"},
        None,
    ),
    "what follows and has completed stays": (
        spec(node("a"), node("b", "a", rule=Rule.ALL_DONE), node("c", "b")),
        {"a": "failed"},
        None,
    ),
    "what was skipped because of others": (
        spec(node("a", on_failure="skip"), node("b", "a"), node("c", "b"), node("d")),
        {"a": "failed"},
        None,
    ),
    "an ignored failure in a failed flow": (
        spec(node("a", on_failure="ignore"), node("b", "a"), node("c")),
        {"a": "failed", "c": "failed"},
        None,
    ),
    "an ignored failure in a completed flow": (
        spec(node("a", on_failure="ignore"), node("b", "a")),
        {"a": "failed"},
        None,
    ),
    "what its handler has skipped": (
        spec(node("a"), node("b"), node("c", "a", rule=Rule.ALL_DONE)),
        {"a": "skipped", "b": "failed"},
        None,
    ),
    "what was skipped by hand": (
        spec(node("a"), node("b", "a"), node("c", "b", rule=Rule.NONE_FAILED), node("d")),
        {"b": "failed", "d": "failed"},
        by_hand,
    ),
    "all of it has completed": (spec(node("a"), node("b", "a")), {}, None),
}


def test_of_an_equal_specification_it_runs_what_did_not_complete(flows: FlowProducer, work: Work) -> None:
    for name, (given, ends, change) in FLOWS.items():
        work.ends = dict(ends)
        flow = flows.submit(given, flow_id=name)
        flow.wait(timeout=LONG)
        if change:
            change(flow)
        work.ends = {one: end for one, end in ends.items() if end == "skipped"}
        before = states(flow)
        plan = flows.plan(given, flow_id=name)
        assert states(flow) == before
        work.ran.clear()
        again = flows.submit(given, flow_id=name, on_existing="retry_failed")
        again.wait(timeout=LONG)
        assert sorted(plan.runs) == sorted(work.ran)
        assert plan.runs == {one: f"was {before[one]}" for one in plan.runs}
        assert sorted([*plan.keeps, *plan.runs]) == sorted(before)
        assert (plan.generation, plan.drops) == (again.generation, []) == (0, [])


def test_of_a_changed_specification_what_was_skipped_by_hand_runs(flows: FlowProducer, work: Work) -> None:
    flow = flows.submit(spec(node("a"), node("b")), flow_id="f")
    flow.wait(timeout=LONG)
    by_hand(flow)
    changed = spec(node("a"), node("b"), node("c"))
    plan = flows.plan(changed, flow_id="f")
    work.ran.clear()
    flows.submit(changed, flow_id="f", on_existing="retry_failed").wait(timeout=LONG)
    assert plan.runs == {"b": "was skipped", "c": "new"}
    assert sorted(work.ran) == ["b", "c"]


def test_of_a_flow_that_was_cancelled(flows: FlowProducer, work: Work, eventually: Eventually) -> None:
    work.held["b"] = threading.Event()
    given = spec(node("a"), node("b", "a"), node("c", "b"))
    flow = flows.submit(given, flow_id="f")
    eventually(lambda: work.ran == ["a", "b"])
    running = flows.plan(given, flow_id="f")  # it is joined, and goes on
    assert (running.keeps, running.runs) == (["a"], {"b": "was active", "c": "was waiting-children"})
    flow.cancel("enough")
    flow.wait(timeout=LONG)
    work.held.pop("b").set()
    plan = flows.plan(given, flow_id="f")
    assert (plan.keeps, plan.runs, plan.generation) == (["a"], {"b": "was failed", "c": "was failed"}, 0)
    work.ran.clear()
    flows.submit(given, flow_id="f", on_existing="retry_failed").wait(timeout=LONG)
    assert work.ran == ["b", "c"]


@STAGED
def test_of_a_flow_with_nodes_that_others_added(flows: FlowProducer, run_worker: RunWorker) -> None:
    ran: list[str] = []
    broken = {"item[1]"}

    def grow(ctx: Any) -> None:
        ran.append(ctx.node)
        ctx.flow.map_over(FlowNode("item", queue="etl", job="item"), [1, 2], before=["end"])

    def item(ctx: Any) -> str:
        ran.append(ctx.node)
        if ctx.node in broken:
            raise Unrecoverable("broken")
        if ctx.node == "odd":
            raise Skip("upstream had nothing")  # reads like the reason of one skipped because of others
        return str(ctx.node)

    run_worker(["etl"], {"grow": grow, "item": item})
    given = spec(
        node("grow", job="grow"),
        node("odd", job="item"),
        node("end", "grow", job="item"),
    )
    flows.submit(given, flow_id="f").wait(timeout=LONG)
    plan = flows.plan(given, flow_id="f")
    assert plan.runs == {"item[1]": "was failed", "end": "was failed"}
    assert (sorted(plan.keeps), plan.generation) == (["grow", "item[0]", "odd"], 0)
    broken.clear()
    ran.clear()
    flow = flows.submit(given, flow_id="f", on_existing="retry_failed")
    assert flow.wait(timeout=LONG).status.completed == 4
    assert ran == ["item[1]", "end"]
    assert flows.plan(given, flow_id="f").runs == {}


@pytest.mark.usefixtures("frequent_chores")
@pytest.mark.parametrize("end", ["completed", "failed"])
def test_of_a_flow_whose_jobs_were_removed_after_its_retention(
    flows: FlowProducer, work: Work, redis_client: Any, eventually: Eventually, end: str
) -> None:
    work.ends["b"] = end
    given = spec(node("a"), node("b", "a"), retention=timedelta(milliseconds=50))
    flows.submit(given, flow_id="f").wait(timeout=LONG)
    eventually(lambda: redis_client.hexists(ETL.flow("f"), "expired_at"))
    work.ends.clear()
    work.ran.clear()
    if end == "failed":
        for asked in (
            lambda: flows.plan(given, flow_id="f"),
            lambda: flows.submit(given, flow_id="f", on_existing="retry_failed"),
        ):
            with pytest.raises(FlowExpired):
                asked()
    else:
        plan = flows.plan(given, flow_id="f")
        assert (plan.keeps, plan.runs, plan.generation) == (["a", "b"], {}, 0)
        kept = flows.submit(given, flow_id="f", on_existing="retry_failed").status()
        assert (kept.state, kept.generation, work.ran) == ("completed", 0, [])
    changed = replace(given, nodes=[node("a"), node("b", "a", data=1)])
    plan = flows.plan(changed, flow_id="f")
    assert (plan.generation, sorted(plan.runs), plan.keeps) == (1, ["a", "b"], [])
    flow = flows.submit(changed, flow_id="f", on_existing="retry_failed")
    assert flow.wait(timeout=LONG).status.completed == 2
    assert (work.ran, flow.generation) == (["a", "b"], 1)
