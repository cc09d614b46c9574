"""A job that waits for its children goes on when all have ended, however, and learns which have failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Ordering,
    Queue,
    Unrecoverable,
    WaitForChildren,
)
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.errors import ChildrenFailed
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.option_values import JobRef
from tests.server.conftest import REACHES

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

P = "glide:{etl}:"
LONG = timedelta(seconds=30)
Submit = Callable[..., Flow]


@pytest.fixture
def submit(hand: Hand, flows: FlowProducer) -> Submit:
    """Submits nodes by a path."""

    def made(path: str, *nodes: FlowNode) -> Flow:
        checked = check_flow(FlowSpec("n", nodes))
        hand.run(submit_flow("glide", checked, "f", "attach", SystemClock(), reach=REACHES[path]))
        return flows.get("f")

    return made


def foreign_failure(queue: Queue, client: Any) -> None:
    """As a worker in Node fails a job, which tells no parent."""
    keys = [P + name for name in ("stream", "failed", "scheduled", "events", "job:child", "metrics:failed")]
    client.fcall("glidemq_fail", 6, *keys, "child", "", "boom", 5, 0, 0, "workers", "0", 0, 0, 0)


ENDS: dict[str, tuple[dict[str, Any], Callable[[Queue, Any], object], str]] = {
    "fails": ({"options": {"remove_on_fail": True}}, lambda queue, client: None, "boom"),
    "expires": (
        {"options": {"ttl": timedelta(milliseconds=1), "delay": timedelta(milliseconds=50)}},
        lambda *_: 1,
        "expired",
    ),
    "is revoked": ({"name": "later"}, lambda queue, client: queue.revoke("child"), "revoked"),
    "is removed": ({"name": "later"}, lambda queue, client: queue.remove("child"), "it was removed"),
    "fails in Node": ({"name": "later"}, foreign_failure, "boom"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_ends_without_a_result_holds_up_nobody(
    how: str, queue: Queue, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    given, end, why = ENDS[how]
    runs: list[str] = []

    def parent(ctx: Any) -> Any:
        runs.append("parent")
        if len(runs) == 1:
            me = JobRef("etl", ctx.job_id)
            queue.add("good", {}, options=JobOptions(parent=me, remove_on_complete=True))
            options = {"delay": timedelta(hours=1)} if given.get("name") == "later" else {}
            more = options | given.get("options", {})
            queue.add("bad", {}, options=JobOptions(parent=me, job_id="child", **more))
            raise WaitForChildren
        return sum(queue.children_values(ctx.job_id).values())

    def bad(ctx: Any) -> None:
        raise Unrecoverable("boom")

    run_worker(["etl"], {"parent": parent, "good": lambda ctx: 100, "bad": bad})
    job_id = queue.add("parent", {})
    if given.get("name") == "later":  # else it may have ended already
        eventually(lambda: redis_client.hget(P + f"job:{job_id}", "depsCompleted") == "1", timeout=30)
        eventually(lambda: queue.get_job(job_id).state == "waiting-children", timeout=30)
    end(queue, redis_client)
    eventually(lambda: queue.get_job(job_id).state == "failed", timeout=30)
    reason = queue.get_job(job_id).failed_reason
    assert reason is not None
    assert f"child of queue etl: {why}" in reason
    with pytest.raises(ChildrenFailed) as failed:
        queue.children_values(job_id)
    assert failed.value.failed == {JobRef("etl", "child"): why}
    assert list(failed.value.values.values()) == [100]


def test_a_failed_child_that_runs_again_is_waited_for_again(
    queue: Queue, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    broken, runs = [True], list[str]()

    def parent(ctx: Any) -> Any:
        runs.append("parent")
        if len(runs) == 1:
            me = JobRef("etl", ctx.job_id)
            queue.add(
                "child", {}, options=JobOptions(parent=me, job_id="child", delay=timedelta(milliseconds=50))
            )
            raise WaitForChildren
        try:
            return list(queue.children_values(ctx.job_id).values())
        except ChildrenFailed as exc:
            broken.clear()
            for child in exc.failed:
                queue.retry(child.id)
            raise WaitForChildren from exc

    def child(ctx: Any) -> int:
        if broken:
            raise Unrecoverable("boom")
        return 7

    run_worker(["etl"], {"parent": parent, "child": child})
    job_id = queue.add("parent", {})
    eventually(lambda: queue.get_job(job_id).state == "completed", timeout=30)
    assert queue.get_job(job_id).result == [7]
    assert len(runs) == 3


def test_a_job_without_children_does_not_wait_for_ever(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def alone(ctx: Any) -> None:
        raise WaitForChildren

    run_worker(["etl"], {"alone": alone})
    job_id = queue.add("alone", {})
    eventually(lambda: queue.get_job(job_id).state == "failed", timeout=30)
    assert queue.get_job(job_id).failed_reason == "WaitForChildren: it has added no children"


def test_a_job_does_not_wait_for_a_child_behind_its_ordering_key(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def parent(ctx: Any) -> None:
        mine = JobOptions(parent=JobRef("etl", ctx.job_id), job_id="child", ordering=Ordering("k"))
        queue.add("child", options=mine)
        raise WaitForChildren

    run_worker(["etl"], {"parent": parent, "child": lambda ctx: 1})
    job_id = queue.add("parent", options=JobOptions(ordering=Ordering("k")))
    eventually(lambda: queue.get_job(job_id).state == "failed", timeout=30)
    why = "child child would never run: this job keeps the place of ordering key k"
    assert queue.get_job(job_id).failed_reason == f"WaitForChildren: {why}"
    eventually(lambda: queue.get_job("child").state == "completed", timeout=30)


@pytest.mark.parametrize("path", REACHES)
@pytest.mark.parametrize("children", [0, 1])
def test_a_node_without_new_children_does_not_wait_for_ever(  # noqa: PLR0917  fixtures
    path: str,
    children: int,
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES[path])
    runs: list[Any] = []

    def waits(ctx: Any) -> None:
        runs.append(ctx.inputs)
        if len(runs) <= children:
            queue.add("first", {}, options=JobOptions(parent=JobRef("etl", ctx.job_id)))
        raise WaitForChildren

    run_worker(["etl"], {"first": lambda ctx: 1, "waits": waits})
    nodes = [
        FlowNode("first", queue="etl", job="first"),
        FlowNode("waits", queue="etl", job="waits", after=["first"]),
    ]
    flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
    outcome = flow.wait(timeout=timedelta(seconds=30))
    why = "all its children have ended, and it has added no more" if children else "it has added no children"
    assert [one.reason for one in outcome.failed] == [f"WaitForChildren: {why}"]
    assert len(runs) == children + 1


def by_us(queue: Queue, client: Any) -> None:
    queue.remove("child")


def by_others(queue: Queue, client: Any) -> None:
    client.delete(P + "job:child")
    client.zrem(P + "scheduled", "child")


@pytest.mark.parametrize("path", REACHES)
@pytest.mark.parametrize("how", [by_us, by_others])
def test_a_node_goes_on_when_its_child_was_removed(  # noqa: PLR0917  fixtures
    path: str,
    how: Callable[[Queue, Any], None],
    submit: Submit,
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
    redis_client: Any,
) -> None:
    def parent(ctx: Any) -> Any:
        if told:
            with pytest.raises(ChildrenFailed, match="it was removed"):
                queue.children_values(ctx.job_id)
            return "seen"
        told.append(ctx.job_id)
        options = JobOptions(parent=JobRef("etl", ctx.job_id), job_id="child", delay=timedelta(hours=1))
        queue.add("later", {}, options=options)
        raise WaitForChildren

    told: list[str] = []
    run_worker(["etl"], {"parent": parent})
    flow = submit(path, FlowNode("p", queue="etl", job="parent"))
    eventually(lambda: told and flow.node("p").state == "waiting-children", timeout=30)
    how(queue, redis_client)
    assert flow.result(timeout=LONG) == {"p": "seen"}


@pytest.mark.parametrize("path", REACHES)
def test_a_node_that_runs_again_has_only_the_children_of_this_run(
    path: str, submit: Submit, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    runs, values, go = list[int](), [1, 20, 300], threading.Event()

    def parent(ctx: Any) -> Any:
        runs.append(ctx.inputs["a"])
        if runs.count(ctx.inputs["a"]) == 1:
            name = f"{ctx.job_id}-{len(runs)}"  # as nodes of this flow are named
            queue.add("child", runs[-1], options=JobOptions(parent=JobRef("etl", ctx.job_id), job_id=name))
            raise WaitForChildren
        return [value for ref, value in queue.children_values(ctx.job_id).items() if ref.id != "f~a"]

    def child(ctx: Any) -> Any:
        assert ctx.data != 20 or go.wait(30)
        return ctx.data

    run_worker(["etl"], {"parent": parent, "child": child, "a": lambda ctx: values.pop(0)})
    flow = submit(
        path, FlowNode("a", queue="etl", job="a"), FlowNode("p", queue="etl", job="parent", after=["a"])
    )
    assert flow.result(timeout=LONG)["p"] == [1]
    flow.rerun("a")
    eventually(lambda: runs[-1] == 20 and flow.node("p").state == "waiting-children", timeout=30)
    flow.rerun("a")  # while the child of the second run still runs
    assert flow.result(timeout=LONG) == {"a": 300, "p": [300]}
    go.set()
    eventually(lambda: queue.get_job(f"f~p-{runs.index(20) + 1}").state == "completed", timeout=30)


def test_what_waits_for_a_child_gets_no_gates_with_time(
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    *,
    redis_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES["portable"])

    def waits(ctx: Any) -> None:
        later = JobOptions(parent=JobRef("etl", ctx.job_id), delay=timedelta(hours=1))
        queue.add("first", {}, options=later)
        raise WaitForChildren

    run_worker(["etl"], {"first": lambda ctx: 1, "waits": waits})
    nodes = [
        FlowNode("first", queue="etl", job="first"),
        FlowNode("waits", queue="etl", job="waits", after=["first"]),
    ]
    flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
    eventually(lambda: redis_client.hget(P + "job:f~waits", "gmo:waited") == "1")
    before = redis_client.smembers(P + "deps:f~waits")
    for _ in range(3):
        flow._run(advance(flow._ref, SystemClock()))
    assert redis_client.smembers(P + "deps:f~waits") == before
    flow.cancel()
