"""Rules, policies, limits and restarts on the portable path, which decides them in Python."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    Dependency,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Ordering,
    Rule,
    Skip,
)
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request, carry, exchange
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import restart_flow, submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node
from tests.rule_oracle import ENDS, verdicts
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump, Hand

Submit = Callable[..., Flow]


@pytest.fixture
def submit(hand: Hand, flows: FlowProducer) -> Submit:
    """Submits by the portable path, although the server could do better."""

    def made(*nodes: FlowNode, flow_id: str = "f", **kw: Any) -> Flow:
        checked = check_flow(FlowSpec("n", nodes, **kw))
        bare = Reach(has_functions=False)
        hand.run(submit_flow("glide", checked, flow_id, "attach", SystemClock(), reach=bare))
        return flows.get(flow_id)

    return made


def test_a_rule_decides_by_the_ends_of_the_dependencies(submit: Submit, work: Work) -> None:
    for rule in Rule:
        nodes = [node(f"{end}.{n}", queue="spark") for end in ENDS for n in range(2)]
        expected: dict[str, set[str]] = {}
        for ends in itertools.chain(
            *(itertools.combinations_with_replacement(ENDS, size) for size in (1, 2))
        ):
            name = "completed.by-" + "-".join(ends)
            nodes.append(node(name, *(f"{end}.{n}" for n, end in enumerate(ends)), rule=rule))
            expected[name] = {"completed" if word == "run" else word for word in verdicts(rule, ends)}
        flow = submit(*nodes, flow_id=rule)
        status = flow.wait(timeout=LONG).status
        found = states(flow)
        assert {name: found[name] for name in expected if found[name] not in expected[name]} == {}
        assert (status.open, status.skipped) == (0, sum(state == "skipped" for state in found.values()))


def test_an_ordering_key_is_refused_and_nothing_is_left(submit: Submit, dump: Dump) -> None:
    first = FlowNode("a", queue="etl", job="work", options=JobOptions(ordering=Ordering("customer 7")))
    before = dump()
    with pytest.raises(InvalidFlow, match=r"node 'b' has an ordering key.*one queue"):
        submit(node("a"), replace(first, name="b", after=["a"]))
    assert dump() == before


def test_an_array_is_refused_and_nothing_is_left(submit: Submit, dump: Dump) -> None:
    before = dump()
    with pytest.raises(InvalidFlow, match=r"node 'b' is an array.*one queue"):
        submit(node("a"), ArrayNode("b", queue="etl", over=range(3), after=["a"]))
    assert dump() == before


@pytest.mark.parametrize("path", ["staged", "portable"])
def test_a_skipped_dependency_gives_no_input(
    path: str, submit: Submit, flows: FlowProducer, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> Any:
        if ctx.node == "b":
            raise Skip
        return sorted(ctx.inputs)

    nodes = [FlowNode(name, queue="etl", job="work") for name in "ab"]
    nodes.append(FlowNode("c", queue="etl", job="work", after=["a", "b"], rule=Rule.ALL_DONE))
    run_worker(["etl"], {"work": work})
    flow = submit(*nodes) if path == "portable" else flows.submit(FlowSpec("n", nodes), flow_id="f")
    assert flow.wait(timeout=LONG).results == {"a": [], "c": ["a"]}


def test_policies_and_reasons(submit: Submit, work: Work) -> None:
    flow = submit(
        node("failed.1", on_failure="ignore"),
        node("completed.a", "failed.1"),
        node("b", Dependency("failed.1", "skip")),
        node("c", Dependency("failed.1", "fail")),
        node("d", "c"),
        node("e", "b"),
        node("completed.f", Dependency("b", "all_done"), "completed.a"),
    )
    status = flow.wait(timeout=LONG).status
    assert reasons(flow) | {"failed.1": ""} == {
        "failed.1": "",
        "completed.a": "",
        "b": "upstream failed: failed.1",
        "c": "upstream failed: failed.1",
        "d": "upstream failed: failed.1",
        "e": "upstream skipped: b",
        "completed.f": "",
    }
    assert (status.state, status.reason) == ("failed", "c: upstream failed: failed.1")


def test_an_ignored_failure_alone_fails_no_flow(submit: Submit, work: Work) -> None:
    flow = submit(node("failed.1", on_failure="ignore"), node("completed.a", "failed.1"))
    assert flow.wait(timeout=LONG).status.state == "completed"


def test_a_skip_in_the_same_queue_releases_no_dependent(submit: Submit, work: Work) -> None:
    flow = submit(node("skipped.1"), node("a", "skipped.1"), node("b", "a", queue="spark"))
    assert flow.wait(timeout=LONG).status.skipped == 3
    assert work.ran == ["skipped.1"]


def test_a_retry_decides_again(submit: Submit, work: Work) -> None:
    work.ends["a"] = "failed"
    flow = submit(
        node("a"),
        node("completed.kept", Dependency("a", "ignore")),
        node("on-success", "a", queue="spark"),
        node("skip-then-run", Dependency("a", "skip")),
    )
    flow.wait(timeout=LONG)
    work.ends["a"] = "completed"
    work.ran.clear()
    flow.retry_failed()
    assert flow.wait(timeout=LONG).status.state == "completed"
    assert sorted(work.ran) == ["a", "on-success", "skip-then-run"]
    assert work.ran[0] == "a"


def test_a_restart_runs_everything_again_in_order(submit: Submit, work: Work) -> None:
    flow = submit(node("a"), node("b", "a", queue="spark"), node("c", "b", rule="all_done"))
    flow.wait(timeout=LONG)
    flow.restart()
    status = flow.wait(timeout=LONG).status
    assert work.ran == ["a", "b", "c"] * 2
    assert (status.completed, status.generation) == (3, 1)


@pytest.mark.long
def test_a_restart_that_was_cut_off_may_be_repeated(submit: Submit, work: Work, hand: Hand) -> None:
    for calls in [1, 4, 9, 15, 30, 45, 50, 60, 90]:
        work.ran.clear()
        flow = submit(node("a"), node("b", "a", queue="spark"), node("c", "b"), flow_id=f"f{calls}")
        flow.wait(timeout=LONG)
        hand.run_until(restart_flow(flow._ref, "r", SystemClock()), calls)
        flow.restart(idempotency_key="r")
        assert flow.generation == 1
        assert flow.wait(timeout=LONG).status.completed == 3
        assert work.ran == ["a", "b", "c"] * 2


@pytest.mark.usefixtures("frequent_chores")
def test_a_worker_notifies_many_dependents_when_no_client_waits(
    submit: Submit, work: Work, eventually: Eventually, redis_client: Any
) -> None:
    many = [node(f"n{n}", "first", queue=("etl", "spark")[n % 2]) for n in range(120)]
    flow = submit(node("first"), *many, node("last", *(one.name for one in many)))
    assert redis_client.exists("glide:{etl}:parents:f~first") == 0
    eventually(lambda: flow.status().completed == 122, timeout=30)


def test_limits(submit: Submit, work: Work, eventually: Eventually) -> None:
    work.held["slow"] = threading.Event()
    flow = submit(node("slow"), node("d", "slow"), deadline=timedelta(milliseconds=600))
    status = flow.wait(timeout=LONG).status
    work.held["slow"].set()
    assert (status.state, status.reason) == ("failed", "deadline: it has not ended within 0.6 s")


def test_fail_fast(submit: Submit, work: Work) -> None:
    work.held["slow"] = threading.Event()
    flow = submit(node("slow"), node("failed.1"), fail_fast=True)
    status = flow.wait(timeout=LONG).status
    work.held["slow"].set()
    assert (status.state, status.reason) == ("failed", "failed.1: broken")


def test_a_queue_without_workers(submit: Submit, work: Work) -> None:
    late = node("a", queue="nobody", queue_timeout=timedelta(milliseconds=300))
    flow = submit(late, node("b", "a"), node("completed.c", "a", rule="one_failed"))
    flow.wait(timeout=LONG)
    assert reasons(flow)["a"] == "queue timeout: no worker of queue nobody began it within 0.3 s"
    assert states(flow) == {"a": "failed", "b": "failed", "completed.c": "completed"}


def test_a_delay_counts_from_the_end_of_the_dependencies(submit: Submit, work: Work) -> None:
    later = JobOptions(delay=timedelta(milliseconds=700))
    flow = submit(node("a"), node("b", "a", options=later), node("c", options=later))
    flow.wait(timeout=LONG)
    found = {one.name: one for one in flow.nodes()}
    first, second = found["a"].finished_at, found["b"].started_at
    assert first is not None
    assert second is not None
    assert second - first >= timedelta(milliseconds=700)
    assert work.ran[0] == "a"


def test_counts_that_come_late_do_not_matter(submit: Submit, work: Work, redis_client: Any) -> None:
    """Two may move a flow on together, and the one that looked first write last."""
    flow = submit(node("completed.a"), node("skipped.b"))
    flow.wait(timeout=LONG)
    redis_client.hset(
        f"glide:{{{flow.home}}}:gmo:flow:f", mapping={"completed": 0, "skipped": 0, "failed": 0}
    )
    status = flow.status()
    assert (status.open, status.completed, status.skipped) == (0, 1, 1)
    flow.restart()
    assert flow.wait(timeout=LONG).status.completed == 1


def test_a_node_waits_for_a_handler_as_long_as_its_queue_timeout(
    submit: Submit, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"other": lambda ctx: None})
    late = FlowNode("a", queue="etl", job="late", queue_timeout=LONG)
    never = FlowNode("b", queue="etl", job="never", queue_timeout=timedelta(seconds=1))
    flow = submit(late, never)
    eventually(lambda: flow.node("b").state == "failed", timeout=20)
    assert "queue timeout" in flow.node("b").reason
    run_worker(["etl"], {"late": lambda ctx: "came"})
    assert flow.wait(timeout=LONG).results == {"a": "came"}


@pytest.mark.parametrize("begins", [0, 1])
def test_the_worker_of_a_failed_node_fails_what_follows_it(
    submit: Submit, hand: Hand, flows: FlowProducer, begins: int
) -> None:
    """In a later generation too, whose jobs and tables have names of their own."""
    submit(node("a"), node("b", "a"))
    if begins:
        checked = check_flow(FlowSpec("n", [node("a"), node("b", "a")]))
        bare = Reach(has_functions=False)
        hand.run(submit_flow("glide", checked, "f", "restart", SystemClock(), reach=bare))
    queue, clock = QueueKeys("glide", "etl"), SystemClock()
    answer = hand.run(exchange(queue, "gmo-worker-1", Request([], 1, "t"), clock))
    failed = [Outcome(attempt, Kind.FAIL, "broken", "", 1, 0) for attempt in answer.fetched]
    answer = hand.run(exchange(queue, "gmo-worker-1", Request(failed, 0, "t2"), clock))
    hand.run(carry(queue, failed, answer.verdicts, clock))
    assert reasons(flows.get("f")) == {"a": "broken", "b": "upstream failed: a"}
