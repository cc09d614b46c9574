"""Failed jobs by group: counted, retried and removed together."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    FlowProducer,
    FlowState,
    JobState,
    Queue,
    Unrecoverable,
)
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, JobStateConflict
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.queues.failure_groups import failed_nodes, flow_failures, group_of
from tests.builders import flow, node
from tests.node import PlainNode

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

LONG = timedelta(seconds=60)
P = "glide:{etl}:"


def fail(ctx: Any) -> None:
    """Fails as its data says: with this text, and in this group."""
    text, group = ctx.data
    if group is None:
        raise ValueError(text)
    ctx.fail(text, group=group)


def failed(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, *data: tuple[str, str | None]
) -> Sequence[str]:
    """Jobs that have failed, one after the other."""
    run_worker(["etl"], {"fail": fail})
    ids = []
    for one in data:
        ids.append(queue.add("fail", one))
        eventually(lambda: queue.get_job(ids[-1]).state is JobState.FAILED)
    return ids


def store(client: Any, count: int, reason: str, first: int = 0) -> None:
    """Failed jobs, the first of them the oldest."""
    with client.pipeline() as pipe:
        for n in range(first, first + count):
            fields = {
                "id": n,
                "name": "work",
                "state": "failed",
                "failedReason": reason,
                "finishedOn": 1_000 + n,
            }
            pipe.hset(f"{P}job:{n}", mapping=fields)
            pipe.zadd(f"{P}failed", {str(n): 1_000 + n})
        pipe.execute()


def shown(groups: Any) -> dict[str, tuple[int, int, int]]:
    return {one.group: (one.count, one.nodes, one.held_back) for one in groups}


def test_a_group_is_the_class_of_the_exception_or_the_first_line(subtests: pytest.Subtests) -> None:
    cases = {
        "ValueError: no such month": "ValueError",
        "sqlalchemy.exc.DataError: x": "sqlalchemy.exc.DataError",
        "KeyError": "KeyError",
        "\n  connect ECONNREFUSED 10.0.0.1:6379\n    at x": "connect ECONNREFUSED 10.0.0.1:6379",
        "https://example.org/x is gone": "https://example.org/x is gone",
        "revoked": "revoked",
        "queue timeout: no worker of queue etl began it within 60 s: HandlerNotFound: x": "queue timeout",
        "": "no reason",
        "51 of 50000 elements failed; element 17: ValueError: x": "ValueError",
        "3 of 3 elements failed; element 0: disk full\nat x": "disk full",
        "x y" * 1_000: ("x y" * 1_000)[:256],
    }
    for reason, expected in cases.items():
        with subtests.test(reason=reason[:40]):
            assert group_of(reason) == expected


def test_a_named_group_is_that_of_one_failure() -> None:
    assert group_of("ValueError: x", "1000 upload error", "1000") == "upload error"
    assert group_of("ValueError: x", "1000 upload error", "2000") == "ValueError"


def test_failed_jobs_are_counted_by_group_with_samples(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    assert queue.failures() == []
    data = [("no month 1", None), ("no month 2", None), ("too large", "upload error"), ("no month 2", None)]
    ids = failed(queue, run_worker, eventually, *data)
    found = queue.failures()
    assert shown(found) == {"ValueError": (3, 0, 0), "upload error": (1, 0, 0)}
    assert not found.is_partial
    first = found[0]
    assert [(one.job_id, one.reason) for one in first.samples] == [
        (ids[3], "ValueError: no month 2"),
        (ids[0], "ValueError: no month 1"),
    ]
    assert (first.first_at, first.last_at) == (
        queue.get_job(ids[0]).finished_at,
        queue.get_job(ids[3]).finished_at,
    )
    assert found[1].samples[0].reason == "too large"


def test_only_a_group_that_is_named_is_stored(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    plain, named = failed(queue, run_worker, eventually, ("x", None), ("x", "upload error"))
    assert redis_client.hget(f"{P}job:{plain}", "gmo:failure_group") is None
    assert redis_client.hget(f"{P}job:{named}", "gmo:failure_group").endswith(" upload error")
    assert redis_client.keys(f"{P}*failure*") == []


def test_a_group_named_in_a_process_reaches_its_worker() -> None:
    sent = pickle.loads(pickle.dumps(Unrecoverable("gone", group="disk")))
    assert (str(sent), sent.group) == ("gone", "disk")


def test_a_job_that_names_a_group_is_not_tried_again(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"fail": fail})
    job_id = queue.add("fail", ("x", "upload error"), attempts=3)
    eventually(lambda: queue.get_job(job_id).state is JobState.FAILED)
    assert queue.get_job(job_id).attempts_made == 1


def test_a_group_that_is_not_valid_fails_the_attempt_with_the_rule(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    (job_id,) = failed(queue, run_worker, eventually, ("x", "two\nlines"))
    assert "failure group" in (queue.get_job(job_id).failed_reason or "")
    with pytest.raises(ConfigurationError, match="no control characters"):
        Unrecoverable("x", group="a\x00b")


def test_the_later_failure_of_a_node_worker_is_not_in_the_named_group(
    queue: Queue, node: PlainNode, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    (job_id,) = failed(queue, run_worker, eventually, ("x", "upload error"))
    redis_client.hset(f"{P}job:{job_id}", mapping={"failedReason": "disk full", "finishedOn": "1"})
    assert shown(queue.failures()) == {"disk full": (1, 0, 0)}


def test_the_failures_of_node_workers_are_grouped(queue: Queue, node: PlainNode) -> None:
    for reason in ("TypeError: x is undefined", "TypeError: y is undefined", "connect ECONNREFUSED\n at z"):
        node.add()
        place = node.begin_next()
        assert place is not None
        node.end_as_failed(*place, reason)
    assert shown(queue.failures()) == {"TypeError": (2, 0, 0), "connect ECONNREFUSED": (1, 0, 0)}
    assert queue.retry_failures("TypeError") == 2
    assert shown(queue.failures()) == {"connect ECONNREFUSED": (1, 0, 0)}


def test_a_group_is_retried_oldest_first_up_to_a_limit_and_a_repeat_goes_on(
    queue: Queue, redis_client: Any
) -> None:
    store(redis_client, 150, "KeyError: x")
    store(redis_client, 150, "ValueError: x", first=150)
    store(redis_client, 150, "KeyError: y", first=300)
    assert queue.retry_failures("KeyError", limit=2) == 2
    assert [job.id for job in queue.get_jobs(JobState.WAITING)] == ["0", "1"]
    assert queue.retry_failures("KeyError", limit=200) == 200
    assert queue.states([str(n) for n in (149, 150, 351, 352)]) == ["waiting", "failed", "waiting", "failed"]
    assert queue.retry_failures("KeyError") == 98
    assert queue.retry_failures("KeyError") == queue.retry_failures("no such group") == 0
    assert shown(queue.failures()) == {"ValueError": (150, 0, 0)}


def test_a_retried_job_has_no_group(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    (job_id,) = failed(queue, run_worker, eventually, ("x", "upload error"))
    queue.pause()
    assert queue.retry_failures("upload error") == 1
    assert redis_client.hget(f"{P}job:{job_id}", "gmo:failure_group") is None


def test_a_group_is_removed_oldest_first_up_to_a_limit(queue: Queue, redis_client: Any) -> None:
    store(redis_client, 150, "KeyError: x")
    store(redis_client, 150, "ValueError: x", first=150)
    store(redis_client, 150, "KeyError: y", first=300)
    assert queue.remove_failures("KeyError", limit=3) == ["0", "1", "2"]
    removed = queue.remove_failures("KeyError", limit=200)
    assert (len(removed), removed[0], removed[-1]) == (200, "3", "352")
    assert len(queue.remove_failures("KeyError")) == 97
    assert queue.remove_failures("KeyError") == queue.remove_failures("no such group") == []
    assert shown(queue.failures()) == {"ValueError": (150, 0, 0)}


def test_a_limit_below_one_is_refused(queue: Queue) -> None:
    for call in (queue.retry_failures, queue.remove_failures):
        with pytest.raises(InvalidJob, match="limit"):
            call("ValueError", limit=0)


def test_reading_is_bounded_and_begins_with_the_newest(queue: Queue, redis_client: Any) -> None:
    store(redis_client, 600, "KeyError: x")
    store(redis_client, 500, "ValueError: x", first=600)
    found = queue.failures(max_examined=500)
    assert (shown(found), found.is_partial) == ({"ValueError": (500, 0, 0)}, True)
    found = queue.failures(max_examined=None)
    assert (shown(found), found.is_partial) == ({"KeyError": (600, 0, 0), "ValueError": (500, 0, 0)}, False)


def test_broken_and_missing_jobs_are_left_out(queue: Queue, redis_client: Any) -> None:
    store(redis_client, 1, "KeyError: x")
    redis_client.set(f"{P}job:text", "not a hash")
    redis_client.zadd(f"{P}failed", {"text": 1, "missing": 2})
    assert shown(queue.failures()) == {"KeyError": (1, 0, 0)}
    assert queue.retry_failures("KeyError") == 1


# a holds back b, c and d; e fails too, and f runs nevertheless
HELD = flow(
    node("a", data=("x", None), job="fail"),
    node("b", "a"),
    node("c", "b", queue="spark"),
    node("d", "a"),
    node("e", data=("y", "upload error"), job="fail"),
    node("f", "e", rule="all_done"),
)


def test_the_failures_of_a_flow_say_what_each_holds_back(
    path: str, flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    run_worker(["etl", "spark"], {"fail": fail, "work": lambda ctx: None})
    found = flows.submit(HELD, flow_id="f")
    assert found.wait(timeout=LONG).status.state is FlowState.FAILED
    expected = {"ValueError": (1, 1, 3), "upload error": (1, 1, 0)}
    assert shown(found.failures()) == expected
    assert shown(queue.failures()) == expected
    cut = queue.failures(max_examined=1)
    assert (cut.is_partial, cut.held_back_is_partial) == (False, True)
    assert shown(cut) == {"ValueError": (1, 1, 0), "upload error": (1, 1, 0)}
    assert not queue.failures().held_back_is_partial
    (group, _) = found.failures()
    assert [(one.node, one.flow_id, one.reason) for one in group.samples] == [("a", "f", "ValueError: x")]
    assert queue.retry_failures("ValueError") == 0, "nodes are retried with their flow"
    assert queue.retry_failed() == 0
    with pytest.raises(JobStateConflict):
        queue.retry(found.node("a").job_id)
    assert shown(found.failures()) == expected


def test_a_group_of_nodes_is_run_again_with_what_it_held_back(
    path: str, flows: FlowProducer, run_worker: RunWorker
) -> None:
    calls: list[str] = []
    is_mended = False

    def work(ctx: Any) -> None:
        calls.append(ctx.node)
        if ctx.node.startswith("a") and not is_mended:
            ctx.fail("no disk", group="disk")
        if ctx.node == "e":
            raise ValueError("e")

    run_worker(["etl"], {"work": work}, concurrency=1)
    found = flows.submit(flow(node("a1"), node("a2"), node("b", "a1", "a2"), node("e")), flow_id="f")
    assert found.wait(timeout=LONG).status.state is FlowState.FAILED
    assert shown(found.failures())["disk"] == (2, 2, 1)
    is_mended = True
    calls.clear()
    assert list(found.retry_failures("disk", limit=1)) == ["a1"]
    found.wait(timeout=LONG)
    assert calls == ["a1"]
    assert len(found.retry_failures("disk")) == 1
    found.wait(timeout=LONG)
    assert sorted(calls) == ["a1", "a2", "b"]
    assert list(found.retry_failures("disk")) == []
    assert shown(found.failures()) == {"ValueError": (1, 1, 0)}


def test_a_node_that_somebody_else_has_retried_with_success_does_not_run_again(
    path: str, flows: FlowProducer, hand: Hand, run_worker: RunWorker
) -> None:
    calls: list[str] = []

    def work(ctx: Any) -> None:
        calls.append(ctx.node)
        if ctx.node == "a" and calls.count("a") == 1:
            ctx.fail("no disk", group="disk")

    run_worker(["etl"], {"work": work}, concurrency=1)
    found = flows.submit(flow(node("a"), node("b", "a")), flow_id="f")
    found.wait(timeout=LONG)
    names = hand.run(failed_nodes(found._ref, "disk", 10))
    assert found.retry_failures("disk") == names == ["a"]
    assert found.wait(timeout=LONG).status.completed == 2
    late = RequestedChange.rerun("late", dependents=True, only_failed=True)
    assert hand.run(change_nodes(found._ref, Selection(names), late, SystemClock())) == []
    assert (found.status().completed, calls) == (2, ["a", "a", "b"])


def test_failed_nodes_of_an_ended_flow_are_removed_by_group(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    run_worker(["etl", "spark"], {"fail": fail, "work": lambda ctx: None})
    found = flows.submit(HELD, flow_id="f")
    found.wait(timeout=LONG)
    assert len(queue.remove_failures("upload error")) == 1
    assert shown(queue.failures()) == {"ValueError": (1, 1, 3)}


def test_the_failures_of_a_large_flow_cost_what_failed(
    flows: FlowProducer, hand: Hand, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"fail": fail, "work": lambda ctx: None}, concurrency=50)
    wide = [node(f"n{number}") for number in range(1_500)]
    found = flows.submit(flow(node("a", data=("x", None), job="fail"), node("b", "a"), *wide), flow_id="f")
    assert found.wait(timeout=LONG).status.failed == 2
    assert sum(1 for _ in hand.steps(flow_failures(found._ref))) <= 4
    assert shown(found.failures()) == {"ValueError": (1, 1, 1)}


def test_a_failed_node_whose_job_was_removed_with_its_name_is_still_counted(
    flows: FlowProducer, redis_client: Any, run_worker: RunWorker
) -> None:
    run_worker(["etl", "spark"], {"fail": fail, "work": lambda ctx: None})
    found = flows.submit(HELD, flow_id="f")
    found.wait(timeout=LONG)
    redis_client.delete(f"{P}job:f~e")
    assert shown(found.failures()) == {"ValueError": (1, 1, 3), "its job was removed": (1, 1, 0)}
