"""Several nodes that are ended by hand at once: none of them runs, also where some have that end already."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_orchestrate import FlowProducer, FlowSpec, Rule
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.foundation.clock import SystemClock
from tests.builders import node
from tests.profile import IS_ALL, sampled
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.server.conftest import Hand

pytestmark = pytest.mark.usefixtures("path")

NAMES = "abcdef"


def chain(rule: Rule = Rule.ALL_DONE) -> FlowSpec:
    """a -> b -> c, and d alone."""
    nodes = [node("a"), node("b", "a"), node("c", "b"), node("d")]
    return FlowSpec("n", [replace(one, rule=rule) for one in nodes])


def finished(flows: FlowProducer, work: Work) -> Flow:
    flow = flows.submit(chain())
    ran(flow, work)
    return flow


@pytest.fixture
def done(flows: FlowProducer, work: Work) -> Flow:
    flow = flows.submit(chain(), flow_id="f")
    flow.wait(timeout=LONG)
    return flow


def ran(flow: Flow, work: Work) -> list[str]:
    flow.wait(timeout=LONG)
    found, work.ran = work.ran, []
    return found


def test_one_that_was_skipped_before_stays_skipped(done: Flow, work: Work) -> None:
    done.skip_node("b")
    ran(done, work)
    assert done.skip_node(nodes=["a", "b", "d"]) == ["a", "d"]
    assert ran(done, work) == ["c"], "c follows what was changed"
    assert states(done) == {"a": "skipped", "b": "skipped", "c": "completed", "d": "skipped"}
    assert (done.status().completed, done.status().skipped) == (1, 3)
    assert done.skip_node(pattern="[abd]") == []
    assert ran(done, work) == []


def test_one_that_was_skipped_and_follows_what_had_not_ended_stays_skipped(
    flows: FlowProducer, path: str
) -> None:
    """It did not wait for what now ends, so it has no end to forget. A portable flow skips it again."""
    eager = replace(node("b", "a", queue="unserved"), rule=Rule.ALWAYS)
    flow = flows.submit(FlowSpec("n", [node("a", queue="unserved"), eager]))
    flow.skip_node("b", reason="not needed")
    assert flow.skip_node(nodes=["a", "b"], reason="no data") == ["a"]
    flow.wait(timeout=LONG)
    assert states(flow) == {"a": "skipped", "b": "skipped"}
    assert flow.node("b").reason == ("not needed" if path == "staged" else "no data")


def test_one_that_has_this_result_keeps_it(done: Flow, work: Work, redis_client: Any) -> None:
    done.complete_node("b", 7)
    ran(done, work)
    assert done.complete_node(nodes=["b", "a", "d"], result=7) == ["a", "d"]
    assert ran(done, work) == ["c"]
    assert dict(done.results()) == {"a": 7, "b": 7, "c": "c!", "d": 7}
    assert done.node("c").attempts == 1
    assert work.inputs["c"] == {"b": 7}
    left = [key for key in redis_client.keys("*:job:*") if redis_client.hexists(key, "gmo:given")]
    assert left == [], "what was to be given is forgotten"
    assert redis_client.keys("*:staying") == []


def test_what_stays_and_follows_nothing_runs_again_later_like_any_other(done: Flow, work: Work) -> None:
    done.skip_node("d")
    ran(done, work)
    assert done.skip_node(nodes=["c", "d"]) == ["c"]
    assert ran(done, work) == []
    assert done.rerun("d") == ["d"]
    assert ran(done, work) == ["d"]
    assert states(done)["d"] == "completed"
    assert done.rerun("b") == ["b"]
    assert ran(done, work) == ["b", "c"]


def test_whoever_dies_after_any_call_a_repeat_ends_them_and_runs_none(
    flows: FlowProducer, work: Work, hand: Hand
) -> None:
    for calls in sampled(range(1, 13)):
        done = finished(flows, work)
        done.skip_node("b")
        ran(done, work)
        picked, wanted = Selection(("a", "b", "d")), RequestedChange("skipped", "r1", "no data")
        hand.run_until(change_nodes(done._ref, picked, wanted, SystemClock()), calls)
        assert hand.run(change_nodes(done._ref, picked, wanted, SystemClock())) == ["a", "d"]
        assert ran(done, work) == ["c"]
        assert states(done) == {"a": "skipped", "b": "skipped", "c": "completed", "d": "skipped"}
        assert (done.status().completed, done.status().skipped) == (1, 3)


@settings(
    max_examples=25 if IS_ALL else 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_in_any_flow_what_is_named_ends_as_asked_and_does_not_run(
    flows: FlowProducer, work: Work, data: st.DataObject
) -> None:
    after = {
        name: data.draw(st.lists(st.sampled_from(NAMES[:at]), unique=True)) if at else []
        for at, name in enumerate(NAMES)
    }
    nodes = [replace(node(name, *after[name]), rule=Rule.ALL_DONE) for name in NAMES]
    flow = flows.submit(FlowSpec("n", nodes))
    ran(flow, work)
    for _ in range(data.draw(st.integers(1, 3))):
        names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
        how = data.draw(st.sampled_from(["skipped", "completed"]))
        changed = (
            flow.skip_node(nodes=names) if how == "skipped" else flow.complete_node(nodes=names, result=7)
        )
        assert set(changed) <= set(names)
        again = set(ran(flow, work))
        assert again.isdisjoint(names)
        found = {one.name: one for one in flow.nodes()}
        assert {found[name].state.value for name in names} == {how}
        follow = set(changed)
        for name in NAMES:
            if not follow.isdisjoint(after[name]):
                follow.add(name)
        assert again == follow - set(names)
        status = flow.status()
        assert status.completed + status.skipped == len(NAMES)
        assert status.skipped == sum(one.state == "skipped" for one in found.values())
