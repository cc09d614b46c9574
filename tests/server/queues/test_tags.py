"""Tags: words by which jobs are found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Deduplication,
    FlowProducer,
    JobOptions,
    JobState,
    JobTemplate,
    NewJob,
    Ordering,
    Queue,
    Schedule,
)
from glidemq_orchestrate.attempts.upkeep import cleanup
from glidemq_orchestrate.clients.schedules import Schedules
from glidemq_orchestrate.errors import InvalidJob, JobNotFound
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import flow, node
from tests.node import PlainNode

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump, Hand

LONG = timedelta(seconds=60)
P = "glide:{etl}:"
ETL = QueueKeys("glide", "etl")


def counts(queue: Queue) -> dict[str, int]:
    return {one.tag: one.count for one in queue.tags()}


def ids(queue: Queue, tag: str, **more: Any) -> list[str]:
    return [job.id for job in queue.tagged(tag, **more)]


def test_a_job_is_found_by_its_tags(queue: Queue) -> None:
    assert (queue.tags(), list(queue.tagged("x"))) == ([], [])
    a = queue.add("work", tags=["x", "y"])
    b = queue.add("work", tags=["x", "x"])
    queue.add("work")
    assert [(one.tag, one.count) for one in queue.tags()] == [("x", 2), ("y", 1)]
    assert (ids(queue, "x"), ids(queue, "y"), ids(queue, "z")) == ([a, b], [a], [])
    assert (queue.get_job(a).tags, queue.get_job(b).tags) == (("x", "y"), ("x",))
    assert queue.tagged("x", exclude_data=True)[0].data is None


def test_every_way_of_adding_lists_the_tags(queue: Queue) -> None:
    parent = queue.add("work")
    every: list[dict[str, Any]] = [
        {},
        {"ordering": Ordering("k")},
        {"deduplication": Deduplication("d")},
        {"parent": JobRef("etl", parent)},
        {"delay": 60},
        {"priority": 3},
        {"job_id": "own"},
    ]
    added = [queue.add("work", tags=["x"], **options) for options in every]
    assert sorted(ids(queue, "x")) == sorted(added)
    many = queue.add_many(
        [NewJob("work", tags=["y"]), NewJob("work", ordering=Ordering("k"), tags=["y"]), NewJob("work")]
    )
    assert ids(queue, "y") == many[:2]
    assert counts(queue) == {"x": len(every), "y": 2}


def test_a_duplicate_gets_no_tags(queue: Queue) -> None:
    queue.add("work", job_id="a")
    with pytest.raises(InvalidJob, match="already exists"):
        queue.add("work", job_id="a", tags=["x"])
    assert queue.add_many([NewJob("work", job_id="a", tags=["x"])]) == [None]
    assert queue.tags() == []


def test_the_jobs_of_a_schedule_have_the_tags_of_its_template(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    template = JobTemplate("work", options=JobOptions(tags=["x"]))
    with Schedules("etl", url) as schedules:
        schedules.upsert("often", Schedule(every=0.05, limit=2), template)
    run_worker(["etl"], {"work": lambda ctx: None})
    eventually(lambda: counts(queue) == {"x": 2})


def test_tags_are_added_and_taken_off_and_count_once(queue: Queue) -> None:
    job_id = queue.add("work", tags=["x"])
    for _ in range(2):
        assert queue.tag(job_id, ["y", "x", "y"]) == ["x", "y"]
        assert counts(queue) == {"x": 1, "y": 1}
    for _ in range(2):
        assert queue.untag(job_id, ["x", "z"]) == ["y"]
        assert counts(queue) == {"y": 1}
    assert queue.get_job(job_id).tags == ("y",)
    assert queue.untag(job_id, ["y"]) == []
    assert (queue.tags(), queue.get_job(job_id).tags) == ([], ())


def test_no_call_makes_a_count_wrong_or_negative(queue: Queue) -> None:
    a, b = queue.add("work", tags=["x"]), queue.add("work")
    queue.untag(b, ["x"])
    queue.untag(b, ["x"])
    assert counts(queue) == {"x": 1}
    queue.untag(a, ["x"])
    assert counts(queue) == {}


def test_the_list_of_a_tag_is_read_in_pages(queue: Queue) -> None:
    added = queue.add_many([NewJob("work", tags=["x"]) for _ in range(450)])
    found = queue.tagged("x", offset=10, limit=420)
    assert found.total == 450
    assert [job.id for job in found] == sorted(added, key=str)[10:430]
    assert ids(queue, "x", offset=450) == []
    assert [one.tag for one in queue.tags(offset=1)] == []


def test_what_is_not_valid_is_refused_with_the_rule(queue: Queue) -> None:
    job_id = queue.add("work")
    for tags, expected in (
        (["a\nb"], "no control characters"),
        ([""], "1 to 256 characters"),
        (["x" * 257], "1 to 256 characters"),
        ("abc", "tags must be"),
        ([str(n) for n in range(33)], "the limit is 32"),
    ):
        with pytest.raises(InvalidJob, match=expected):
            queue.tag(job_id, tags)
        with pytest.raises(InvalidJob, match=expected):
            JobOptions(tags=tags)
    queue.tag(job_id, [str(n) for n in range(32)])
    with pytest.raises(InvalidJob, match="more than 32 tags"):
        queue.tag(job_id, ["one more"])
    assert len(queue.tags()) == 32
    for call in (queue.tag, queue.untag):
        with pytest.raises(JobNotFound):
            call("missing", ["x"])


def test_a_job_that_vanishes_leaves_no_tags(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    added = [queue.add("work", tags=["x"]) for _ in range(3)]
    queue.remove(added[0])
    assert counts(queue) == {"x": 2}
    queue.drain()
    assert redis_client.keys(f"{P}qx:*") == []
    queue.add("work", tags=["x"], remove_on_complete=True)
    queue.add("work", tags=["x"], remove_on_complete=1)
    run_worker(["etl"], {"work": lambda ctx: None})
    last = queue.add("work", tags=["x", "y"], remove_on_complete=1)
    eventually(lambda: ids(queue, "x") == [last])
    assert queue.get_job(last).state is JobState.COMPLETED
    queue.clean(JobState.COMPLETED)
    assert redis_client.keys(f"{P}qx:*") == []


def test_many_jobs_leave_their_tags_together(queue: Queue, redis_client: Any) -> None:
    queue.add_many([NewJob("work", tags=["x", "y"]) for _ in range(60)])
    kept = queue.add("work", tags=["y"], delay=60)
    redis_client.config_resetstat()
    assert queue.drain() == 60
    assert counts(queue) == {"y": 1}
    assert ids(queue, "y") == [kept]
    calls = redis_client.info("commandstats")["cmdstat_zadd"]["calls"]
    assert calls < 60, "the count of a tag changes with each call, not with each job"


def test_a_broken_list_of_a_tag_harms_no_other_job(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    a, b = (queue.add("work", tags=[tag], remove_on_complete=True) for tag in ("x", "y"))
    redis_client.set(f"{P}qx:tag:x", "not a list")
    run_worker(["etl"], {"work": lambda ctx: None})
    eventually(lambda: queue.states([a, b]) == [None, None])
    assert ids(queue, "y") == []


def test_obliterate_removes_the_tags(queue: Queue, redis_client: Any) -> None:
    queue.add("work", tags=["x"])
    queue.obliterate()
    assert redis_client.keys("*qx:*") == []


def test_jobs_that_a_node_client_removed_are_not_listed(queue: Queue, node: PlainNode) -> None:
    a, b, c = (queue.add("work", tags=["x"]) for _ in range(3))
    node.client.delete(f"{P}job:{a}", f"{P}job:{c}")
    assert queue.tagged("x").total == 1
    assert ids(queue, "x") == [b]
    assert counts(queue) == {"x": 1}


def test_cleanup_finds_jobs_that_a_node_client_removed(queue: Queue, hand: Hand, redis_client: Any) -> None:
    kept = queue.add("work", tags=["y"])
    for job_id in [queue.add("work", tags=["x", str(n)]) for n in range(40)]:
        redis_client.delete(f"{P}job:{job_id}")
    for minute in range(1, 40):
        while hand.run(ask(cleanup(ETL, minute * 60_000))):
            pass
    assert counts(queue) == {"y": 1}
    assert ids(queue, "y") == [kept]


def test_a_job_added_by_a_node_client_can_be_tagged(queue: Queue, node: PlainNode) -> None:
    job_id = node.add()
    assert queue.tag(job_id, ["x"]) == ["x"]
    assert ids(queue, "x") == [job_id]
    assert node.run_all() == [job_id]
    assert queue.tagged("x")[0].state is JobState.COMPLETED


def test_a_node_client_can_name_tags_in_its_options(queue: Queue, node: PlainNode) -> None:
    job_id = node.add(opts={"tags": ["x", "y", 7, "x"]})
    node.add(opts={"tags": "x"})
    assert counts(queue) == {"x": 1, "y": 1}
    assert queue.get_job(job_id).tags == ("x", "y")


def test_broken_tags_of_a_job_are_none(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("work", tags=["x"])
    redis_client.hset(f"{P}job:{job_id}", "gmo:tags", "{")
    assert queue.get_job(job_id).tags == ()
    assert queue.tag(job_id, ["y"]) == ["y"]
    queue.remove(job_id)
    assert ids(queue, "x") == []


def test_nodes_have_tags_on_both_paths(
    path: str, flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    found = flows.submit(flow(node("a", tags=["x", "y"]), node("b", "a", tags=["x"]), node("c")), flow_id="f")
    assert counts(queue) == {"x": 2, "y": 1}
    assert ids(queue, "x") == ["f~a", "f~b"]
    run_worker(["etl"], {"work": lambda ctx: None})
    found.wait(timeout=LONG)
    found.restart()
    found.wait(timeout=LONG)
    found_again = [job_id for job_id in ids(queue, "x") if job_id.startswith("f@1.")]
    assert len(found_again) == 2, "the jobs of the first generation may have been removed"


def test_a_node_whose_job_was_removed_is_listed_again_when_it_reruns(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"work": lambda ctx: None})
    found = flows.submit(flow(node("a", tags=["x"]), node("b", "a", job="none")), flow_id="f")
    found.cancel("enough")
    found.wait(timeout=LONG)
    (job,) = queue.tagged("x")
    queue.remove(job.id)
    assert counts(queue) == {}
    found.retry_failed()
    assert [one.id for one in queue.tagged("x")] == [job.id]


def test_tags_in_the_options_are_not_stored_again(queue: Queue, flows: FlowProducer, dump: Dump) -> None:
    job_id, ordered = queue.add("work", tags=["x"]), queue.add("work", tags=["x"], ordering=Ordering("k"))
    flows.submit(flow(node("a", tags=["x"])), flow_id="f")
    assert [one.tags for one in queue.tagged("x")] == [("x",)] * 3
    for each in (job_id, ordered, "f~a"):
        assert "gmo:tags" not in dump()[f"{P}job:{each}"]
    queue.untag(job_id, ["x"])
    assert queue.get_job(job_id).tags == ()
    assert queue.tag(job_id, ["y"]) == ["y"]


def test_cleanup_counts_again(queue: Queue, hand: Hand, redis_client: Any) -> None:
    queue.add("work", tags=["x"])
    redis_client.zadd(f"{P}qx:tags", {"x": 7, "gone": 2})
    hand.run(ask(cleanup(ETL, 60_000)))
    assert counts(queue) == {"x": 1}


def test_what_has_no_tags_costs_no_key(queue: Queue, dump: Dump) -> None:
    job_id = queue.add("work", {"tags": ["x"]}, attempts=2)
    assert [key for key in dump() if ":qx:" in key] == []
    assert "gmo:tags" not in dump()[f"{P}job:{job_id}"]
