"""Single elements of an array are cancelled, skipped, completed and rerun by hand."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    JobState,
    Queue,
)
from glidemq_orchestrate.errors import FlowEnded, NodeNotEnded, NodeNotFound, NodeNotRepeatable

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

BOTH = pytest.mark.parametrize("as_jobs", [False, True], ids=["slices", "jobs"])
SIZE = 6


def flow_of(**fields: Any) -> FlowSpec:
    array = ArrayNode("a", job="work", **({"over": range(SIZE)} | fields))
    first = [FlowNode("first")] if fields.get("after") else []
    return FlowSpec("f", [*first, array, FlowNode("report", after=["a"])], queue="etl")


def summary(elements: int, completed: int, failed: int = 0, skipped: int = 0) -> dict[str, int]:
    return {"elements": elements, "completed": completed, "failed": failed, "skipped": skipped}


class Calls:
    """Handlers that count the calls of each element; those in ``broken`` fail."""

    def __init__(self, *broken: int) -> None:
        self.counts, self.reports, self.broken = Counter[int](), list[Any](), set(broken)

    def work(self, ctx: Context) -> Any:
        assert ctx.index is not None
        self.counts[ctx.index] += 1
        if ctx.index in self.broken:
            raise ValueError(f"broken {ctx.index}")
        return [ctx.index, self.counts[ctx.index]]

    def report(self, ctx: Context) -> Any:
        self.reports.append(ctx.inputs["a"])
        return ctx.inputs["a"]

    @property
    def handlers(self) -> dict[str, Any]:
        return {"work": self.work, "report": self.report, "first": lambda _: None}


def states(flow: Flow, size: int = SIZE) -> str:
    """The first letter of the state of each element."""
    return "".join(flow.node(f"a[{at}]").state[0] for at in range(size))


@BOTH
def test_elements_that_nobody_has_run_end_by_hand(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    assert flow.cancel_node("a[0]", "no longer needed") == ["a[0]"]
    assert flow.skip_node(nodes=["a[2]", "a[3]"], reason="empty") == ["a[2]", "a[3]"]
    assert flow.complete_node("a[5]", {"by": "hand"}) == ["a[5]"]
    assert flow.complete_node("a[5]", {"by": "hand"}) == [], "it has this result"
    assert states(flow) == "fwsswc"
    assert flow.node("a[2]").reason == "empty"
    run_worker(["etl"], calls.handlers)
    outcome = flow.wait(timeout=30)
    assert calls.counts == {1: 1, 4: 1}
    assert flow.node("a").progress == summary(6, 3, 1, 2)
    assert flow.array("a").results() == {1: [1, 1], 4: [4, 1], 5: {"by": "hand"}}
    (failed,) = flow.array("a").failed()
    assert (failed.index, failed.reason) == (0, "cancelled: no longer needed")
    assert outcome.failed[0].reason == "1 of 6 elements failed; element 0: cancelled: no longer needed"


@BOTH
def test_a_retry_runs_what_was_cancelled_once(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs, max_failed=0), flow_id="x")
    flow.cancel_node("a[4]")  # with one failure too many, the array ends before a worker gets to any element
    assert flow.wait(timeout=30).state is FlowState.FAILED
    run_worker(["etl"], calls.handlers)
    flow.retry_failed()
    assert flow.result(timeout=30)["report"] == summary(6, 6)
    assert calls.counts == Counter(range(SIZE))


@BOTH
def test_an_end_by_hand_is_changed_and_taken_back(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    flow.skip_node("a[1]")
    assert flow.complete_node("a[1]", 7) == ["a[1]"]
    assert flow.rerun("a[1]") == ["a[1]"]
    flow.skip_node("a[2]")
    assert states(flow) == "wwswww"
    run_worker(["etl"], calls.handlers)
    assert flow.result(timeout=30)["report"] == summary(6, 5, skipped=1)
    assert calls.counts == {0: 1, 1: 1, 3: 1, 4: 1, 5: 1}
    assert flow.array("a").results()[1] == [1, 1]


@BOTH
@pytest.mark.parametrize("after", [[], ["first"]], ids=["open", "not open"])
def test_an_array_without_an_element_left_ends(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool, after: list[str]
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs, after=after), flow_id="x")
    flow.complete_node(nodes=[f"a[{at}]" for at in range(5)], result=1)
    flow.skip_node("a[5]")
    assert flow.node("a").state is (JobState.WAITING_CHILDREN if after else JobState.COMPLETED)
    run_worker(["etl"], calls.handlers)
    assert flow.result(timeout=30)["report"] == summary(6, 5, skipped=1)
    assert not calls.counts


@BOTH
def test_one_failure_too_many_stops_the_array(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    flow = flows.submit(flow_of(as_jobs=as_jobs, max_failed=1), flow_id="x")
    flow.cancel_node("a[0]")
    assert flow.node("a").state is JobState.ACTIVE
    flow.cancel_node("a[1]")
    assert flow.node("a").state is JobState.FAILED
    run_worker(["etl"], Calls().handlers)
    assert flow.wait(timeout=30).state is FlowState.FAILED


@BOTH
def test_a_running_element_is_stopped_and_the_others_go_on(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls, started, stopped = Calls(), threading.Event(), threading.Event()

    def work(ctx: Context) -> Any:
        calls.work(ctx)
        if ctx.index == 0:
            started.set()
            if ctx.cancelled.wait(30):
                stopped.set()
        return "own"

    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    run_worker(["etl"], calls.handlers | {"work": work}, concurrency=1, lease=1)
    assert started.wait(30)
    assert flow.complete_node("a[0]", "by hand") == ["a[0]"]
    assert stopped.wait(30)
    assert flow.result(timeout=30)["report"] == summary(6, 6)
    assert flow.array("a").results() == {0: "by hand", **dict.fromkeys(range(1, 6), "own")}
    assert calls.counts == Counter(range(SIZE))


@pytest.mark.parametrize("reruns", [False, True])
def test_what_a_batch_returns_for_an_element_that_was_ended_does_not_count(
    flows: FlowProducer, run_worker: RunWorker, *, reruns: bool
) -> None:
    handlers, started, go_on = Handlers(), threading.Event(), threading.Event()
    sizes = list[list[Any]]()

    @handlers.batch_handler("work", size=4)
    def many(contexts: list[Context]) -> list[Any]:
        sizes.append([ctx.index for ctx in contexts])
        started.set()
        assert go_on.wait(30)
        return [len(sizes)] * len(contexts)

    handlers.handler("report")(Calls().report)
    flow = flows.submit(flow_of(over=range(4)), flow_id="x")
    run_worker(["etl"], handlers, concurrency=1)
    assert started.wait(30)
    flow.skip_node("a[1]")
    if reruns:
        assert flow.rerun("a[1]") == ["a[1]"]
    state = flow.node("a[1]").state
    assert (state in {JobState.WAITING, JobState.ACTIVE}) if reruns else (state is JobState.SKIPPED)
    assert flow.node("a[2]").state is JobState.ACTIVE
    go_on.set()
    assert flow.result(timeout=30)["report"] == summary(4, 3 + reruns, skipped=1 - reruns)
    assert sizes == [[0, 1, 2, 3], [1]][: 1 + reruns]
    assert flow.array("a").results() == {0: 1, 2: 1, 3: 1} | ({1: 2} if reruns else {})


@pytest.mark.parametrize("is_alone", [False, True], ids=["among others", "alone"])
def test_a_long_element_of_a_slice_is_stopped(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, *, is_alone: bool
) -> None:
    """It has others beside it in its slice until the worker has reported those early."""
    calls, started, stopped = Calls(), threading.Event(), threading.Event()

    def work(ctx: Context) -> Any:
        if ctx.index == 50:
            started.set()
            if ctx.cancelled.wait(60):
                stopped.set()
        return calls.work(ctx)

    flow = flows.submit(flow_of(over=range(100)), flow_id="x")
    run_worker(["etl"], calls.handlers | {"work": work}, concurrency=2, lease=1)
    assert started.wait(30)
    if is_alone:
        eventually(lambda: flow.array("a").counts().completed == 99)
    flow.skip_node("a[50]")
    assert stopped.wait(30)
    assert flow.result(timeout=30)["report"] == summary(100, 99, skipped=1)
    assert calls.counts == Counter(range(100))


@BOTH
@pytest.mark.parametrize("dependents", [True, False])
def test_one_element_of_a_completed_array_runs_again(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool, dependents: bool
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    assert flow.rerun("a[3]", dependents=dependents) == ["a[3]"]
    assert flow.result(timeout=30)["report"] == summary(6, 6)
    assert flow.node("a").progress == summary(6, 6)
    assert calls.counts == Counter(range(SIZE)) + Counter([3])
    assert flow.array("a").results()[3] == [3, 2]
    assert flow.array("a").results()[2] == [2, 1]
    assert len(calls.reports) == 1 + dependents


@BOTH
def test_a_failed_array_is_mended_element_by_element(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls = Calls(1, 3, 5)
    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    run_worker(["etl"], calls.handlers)
    assert flow.wait(timeout=30).state is FlowState.FAILED
    calls.broken.clear()
    assert flow.rerun("a[1]") == ["a[1]"]
    assert flow.wait(timeout=30).state is FlowState.FAILED
    assert [one.index for one in flow.array("a").failed()] == [3, 5]
    assert flow.cancel_node("a[3]") == [], "it has failed"
    assert flow.complete_node("a[3]", "by hand") == ["a[3]"]
    assert flow.wait(timeout=30).state is FlowState.FAILED
    assert flow.skip_node("a[5]") == ["a[5]"]
    assert flow.result(timeout=30)["report"] == summary(6, 5, skipped=1)
    assert flow.array("a").results() == {0: [0, 1], 1: [1, 2], 2: [2, 1], 3: "by hand", 4: [4, 1]}
    assert calls.counts == Counter(range(SIZE)) + Counter([1])


def test_the_rest_of_a_cancelled_flow_goes_on_with_one_element(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(), flow_id="x")
    flow.skip_node("a[0]")
    flow.cancel("enough")
    assert flow.wait(timeout=30).state is FlowState.CANCELLED
    run_worker(["etl"], calls.handlers)
    assert flow.rerun("a[2]") == ["a[2]"]
    flow.retry_failed()
    assert flow.result(timeout=30)["report"] == summary(6, 5, skipped=1)
    assert calls.counts == Counter(range(1, SIZE))


def test_a_request_repeated_changes_nothing(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    for _ in range(2):
        assert flow.rerun(nodes=["a[1]", "a[2]"], idempotency_key="monday") == ["a[1]", "a[2]"]
        flow.result(timeout=30)
    assert calls.counts == Counter(range(SIZE)) + Counter([1, 2])


def test_many_elements_change_in_several_calls(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(over=range(500)), flow_id="x")
    names = [f"a[{at}]" for at in range(0, 500, 2)]
    assert flow.skip_node(nodes=names) == names
    with pytest.raises(NodeNotEnded, match=r"a\[1\] has not ended"):
        flow.rerun(nodes=[*names, "a[1]"])
    assert flow.array("a").counts().skipped == 250
    run_worker(["etl"], calls.handlers)
    assert flow.result(timeout=30)["report"] == summary(500, 250, skipped=250)
    assert flow.rerun(nodes=names[:120]) == names[:120]
    assert flow.result(timeout=30)["report"] == summary(500, 370, skipped=130)
    assert calls.counts == Counter(range(1, 500, 2)) + Counter(range(0, 240, 2))


def test_nodes_and_elements_change_together(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(after=["first"]), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    assert flow.rerun(nodes=["a[1]", "first"]) == ["first"], "all elements run again after that node"
    assert flow.result(timeout=30)["report"] == summary(6, 6)
    assert calls.counts == Counter([*range(SIZE)] * 2)
    assert flow.complete_node(nodes=["a[1]", "report"], result=7) == ["report", "a[1]"]
    flow.wait(timeout=30)
    assert flow.array("a").results()[1] == 7


def test_what_is_not_there_is_refused_and_nothing_changes(
    flows: FlowProducer, run_worker: RunWorker, queue: Queue
) -> None:
    flow = flows.submit(flow_of(), flow_id="x")
    for change in (flow.cancel_node, flow.skip_node, flow.rerun, lambda name: flow.complete_node(name, 1)):
        with pytest.raises(NodeNotFound, match=r"array a has 6 elements, numbered from 0"):
            change("a[6]")
        with pytest.raises(NodeNotFound, match=r"no node b\[3\]"):
            change("b[3]")
        with pytest.raises(NodeNotFound, match=r"report .*is not an array, so it has no elements"):
            change("report[3]")
    with pytest.raises(NodeNotEnded, match=r"element a\[3\] has not ended"):
        flow.rerun("a[3]")
    for name in ("a[01]", "a[\uff11]", "a[-1]"):
        for read in (flow.node, flow.skip_node):
            with pytest.raises(NodeNotFound, match="has no node a"):
                read(name)
    with pytest.raises(NodeNotFound, match="array a has 6 elements, numbered from 0"):
        flow.skip_node(f"a[{10**20}]")
    for names in (["a[1]", "a[6]"], ["a[1]", "nobody"], ["report", "a[6]"]):
        with pytest.raises(NodeNotFound):
            flow.skip_node(nodes=names)
    assert states(flow) == "wwwwww"
    assert flow.node("report").state is JobState.WAITING_CHILDREN
    run_worker(["etl"], Calls().handlers)
    flow.wait(timeout=30)
    with pytest.raises(
        NodeNotFound, match=r"a\[1\] is an element, and a restart reruns whole nodes\. Fix: restart"
    ):
        flow.restart(nodes=["a[1]"])
    queue.remove(flow.node("a").job_id)
    with pytest.raises(NodeNotRepeatable, match="array a"):
        flow.rerun("a[1]")


def test_elements_of_a_flow_that_is_being_cancelled_stay(flows: FlowProducer, redis_client: Any) -> None:
    flow = flows.submit(flow_of(), flow_id="x")
    redis_client.hset("glide:{etl}:gmo:flow:x", "cancel", "cancelled")
    with pytest.raises(FlowEnded):
        flow.skip_node("a[1]")
    redis_client.hdel("glide:{etl}:gmo:flow:x", "cancel")
    assert states(flow) == "wwwwww"


@BOTH
def test_an_end_by_hand_outlasts_a_skip_because_of_others(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls, broken = Calls(), threading.Event()
    broken.set()

    def first(_: Context) -> None:
        if broken.is_set():
            raise ValueError("broken")

    array = ArrayNode("a", job="work", over=range(SIZE), as_jobs=as_jobs, after=["first"])
    nodes = [FlowNode("first", on_failure="skip"), array]
    flow = flows.submit(FlowSpec("f", nodes, queue="etl"), flow_id="x")
    flow.skip_node("a[1]")
    run_worker(["etl"], calls.handlers | {"first": first})
    flow.wait(timeout=30)
    assert flow.node("a").state is JobState.SKIPPED
    broken.clear()
    flow.retry_failed()
    flow.result(timeout=30)
    assert flow.node("a").progress == summary(6, 5, skipped=1)


def test_what_follows_runs_once_more_however_many_elements_change(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(over=range(300)), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    flow.skip_node(nodes=[f"a[{at}]" for at in range(299)])
    assert flow.result(timeout=30)["report"] == summary(300, 1, skipped=299)
    flow.rerun(nodes=[f"a[{at}]" for at in range(250)])
    assert flow.result(timeout=30)["report"] == summary(300, 251, skipped=49)
    assert calls.reports == [summary(300, 300), summary(300, 1, skipped=299), summary(300, 251, skipped=49)]


def test_a_client_that_dies_between_its_calls_leaves_an_array_that_ends(
    flows: FlowProducer, run_worker: RunWorker, hand: Hand
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(over=range(200)), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    names = [f"a[{at}]" for at in range(200)]
    changing = flow._operations.skip_node(nodes=names)
    sent = hand.run_until(changing, 12)
    assert sent == 12
    assert 0 < flow.array("a").counts().skipped < 200
    outcome = flow.wait(timeout=60)
    assert outcome.state is FlowState.COMPLETED
    assert outcome.results["report"]["skipped"] == flow.array("a").counts().skipped
    assert flow.skip_node(nodes=names)
    flow.wait(timeout=60)
    assert flow.array("a").counts().skipped == 200


@BOTH
def test_an_array_that_was_ended_by_hand_keeps_the_ends_of_its_elements(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(as_jobs=as_jobs), flow_id="x")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    flow.complete_node("a", {"my": 1})
    assert flow.result(timeout=30)["report"] == {"my": 1}
    assert states(flow) == "cccccc"
    assert flow.complete_node("a[5]", 7) == ["a[5]"]
    assert flow.result(timeout=30)["report"] == summary(6, 6)
    assert flow.array("a").results() == {at: [at, 1] for at in range(5)} | {5: 7}
    assert calls.counts == Counter(range(SIZE))


def test_an_element_of_an_array_that_did_not_run_is_not_cancelled(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    calls = Calls()
    flow = flows.submit(flow_of(after=["first"]), flow_id="x")
    flow.skip_node("first")
    run_worker(["etl"], calls.handlers)
    flow.wait(timeout=30)
    assert flow.node("a").state is JobState.SKIPPED
    assert flow.cancel_node("a[1]") == []
    assert flow.node("a").state is JobState.SKIPPED
