"""Facts 14 to 27 and 40 of the client specification: workers of both kinds on one queue."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import EventReader, JobOptions, Keep, Queue, RetryLater, Suspend
from glidemq_orchestrate.attempts import exchange, workers
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request, heartbeat
from glidemq_orchestrate.jobs.option_values import RateLimit
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Eventually, RunWorker
    from tests.node import Node

KEYS = QueueKeys("glide", "q")
HOUR = timedelta(hours=1)


def pending(node: Node) -> int:
    return int(node.client.xpending("glide:{q}:stream", "workers")["pending"])


def completed(node: Node) -> int:
    return int(node.client.zcard("glide:{q}:completed"))


def begin(queue: Queue, now_ms: int, consumer: str = "gmo-worker-1-dead") -> Any:
    """A worker of ours takes one job and dies."""
    queue._run(workers.open_queues([KEYS]))

    class Now:
        def now_ms(self) -> int:
            return now_ms

        def monotonic_ms(self) -> int:
            return self.now_ms()

    return queue._run(exchange.exchange(KEYS, consumer, Request([], 1, f"t{now_ms}"), Now())).fetched[0]


def test_fact_14_two_kinds_of_workers_share_a_queue(
    node: Node, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    ran: Counter[str] = Counter()
    lock = threading.Lock()

    def work(ctx: Any) -> str:
        with lock:
            ran[ctx.job_id] += 1
        return "p"

    for _ in range(200):
        node.add()
    run_worker(["q"], {"work": work}, concurrency=2, prefetch=0)
    while taken := node.take():
        with lock:
            ran[taken.id] += 1
        fields = node.complete(taken)
        while fields is not None:
            with lock:
                ran[fields.id] += 1
            fields = node.complete(fields)
    eventually(lambda: completed(node) == 200)
    assert set(ran.values()) == {1}
    assert len(ran) == 200
    eventually(lambda: pending(node) == 0)


def test_fact_15_a_worker_of_ours_is_listed(node: Node, run_worker: RunWorker) -> None:
    worker = run_worker(["q"], {"work": lambda ctx: 1}).worker
    (listed,) = node.workers()
    assert listed["id"] == worker.id
    assert listed["age"] >= 0
    assert listed["activeJobs"] == 0


@pytest.mark.parametrize("lacking", ["addr", "pid", "startedAt"])
def test_fact_16_a_registration_that_lacks_a_field_is_not_listed(
    node: Node, run_worker: RunWorker, lacking: str
) -> None:
    worker = run_worker(["q"], {"work": lambda ctx: 1}).worker
    key = f"glide:{{q}}:w:{worker.id}"
    registration = json.loads(node.client.get(key))
    del registration[lacking]
    node.client.set(key, json.dumps(registration))
    assert node.workers() == []


@pytest.mark.parametrize("place", ["stream", "lifo"])
def test_fact_17_a_node_worker_takes_over_from_a_dead_one_of_ours(
    node: Node, queue: Queue, place: str
) -> None:
    lifo = place == "lifo"
    job_id = node.add(opts={"lifo": lifo})
    late = begin(queue, node.now() - 5_000)
    if lifo:
        keys = node.key("stream", "events")
        node.fcall("glidemq_reclaimStalledListJobs", keys, 700, 1, node.now(), "glide:{q}:failed", 1_000)
    else:
        words = ("workers", node.consumer, 0, 1, node.now(), "glide:{q}:failed", 0, 1_000)
        node.fcall("glidemq_reclaimStalled", node.key("stream", "events"), *words)
    taken = node.take()
    assert taken is not None
    assert (taken.id, taken.fields["stalledCount"], taken.fields["attemptsMade"]) == (job_id, "1", "0")
    node.complete(taken, '"by node"')
    answer = queue._run(hand_in(node, Outcome(late, Kind.DONE, '"late"')))
    assert answer.verdicts[0].startswith("stale ")
    assert node.job(job_id)["returnvalue"] == '"by node"'


def hand_in(node: Node, outcome: Outcome) -> Any:
    return ask(exchange.finish_and_fetch(KEYS, "gmo-worker-1-dead", Request([outcome], 0, "t"), node.now()))


def test_fact_18_a_long_job_of_ours_is_not_taken(node: Node, queue: Queue) -> None:
    job_id = node.add()
    attempt = begin(queue, node.now() - 60_000)
    queue._run(heartbeat(KEYS, [attempt], node.now()))
    words = ("workers", node.consumer, 0, 1, node.now(), "glide:{q}:failed", 0, 1_000)
    node.fcall("glidemq_reclaimStalled", node.key("stream", "events"), *words)
    assert node.job(job_id)["state"] == "active"
    assert "stalledCount" not in node.job(job_id)


def test_fact_19_lists_go_before_the_stream(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    order: list[str] = []
    plain, newest = node.add(), node.add(opts={"lifo": True})
    first = node.add(opts={"priority": 1})
    run_worker(["q"], {"work": lambda ctx: order.append(ctx.job_id)}, concurrency=1, prefetch=0)
    eventually(lambda: len(order) == 3)
    assert order == [first, newest, plain]


def test_fact_20_the_count_of_list_jobs_returns_to_zero(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Any) -> None:
        if ctx.data == "suspend" and not ctx.signals:
            raise Suspend
        if ctx.data == "later" and ctx.attempt == 1 and node.client.setnx("seen", 1):
            raise RetryLater(timedelta(milliseconds=1), counts=False)
        if ctx.data == "fail":
            raise ValueError

    def states(ids: list[str]) -> list[str]:
        return [node.job(job_id)["state"] for job_id in ids]

    for opts in ({"lifo": True, "attempts": 2}, {"priority": 5, "attempts": 2}):
        by_us = [node.add(data=json.dumps(word), opts=opts) for word in ("suspend", "later", "fail", "fine")]
        worker = run_worker(["q"], {"work": work})
        parked = ["suspended", "completed", "failed", "completed"]
        eventually(partial(_same, states, by_us, parked))
        keys = node.key(f"job:{by_us[0]}", "stream", "events", "suspended", f"signals:{by_us[0]}")
        node.fcall("glidemq_signal", keys, by_us[0], "go", "", node.now())
        eventually(partial(_same, states, by_us, ["completed", *parked[1:]]))
        worker.worker.stop()
        worker.stop()
        node.client.delete("seen")
        node.add(opts=opts)
        node.promote()
        taken = node.take()
        assert taken is not None
        assert taken.entry == ""
        node.complete(taken)
        assert node.client.get("glide:{q}:list-active") == "0"


def _same(read: Callable[[list[str]], list[str]], ids: list[str], wanted: list[str]) -> bool:
    return read(ids) == wanted


def test_fact_21_the_chain_hands_out_jobs_of_lists_without_an_entry(node: Node) -> None:
    node.add()
    from_list = node.add(opts={"lifo": True})
    first = node.take()
    assert first is not None
    assert (first.id, first.entry) == (from_list, "")
    second = node.complete(first)
    assert second is not None
    assert second.entry != ""
    assert second.fields["state"] == "active"


def test_fact_22_a_worker_that_stops_leaves_nothing_active(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    for _ in range(500):
        node.add()
    worker = run_worker(["q"], {"work": lambda ctx: ctx.cancelled.wait(0.001)}, concurrency=2)
    eventually(lambda: completed(node) > 20)
    worker.worker.stop()
    worker.stop()
    assert pending(node) == 0
    states = Counter(node.job(str(number))["state"] for number in range(1, 501))
    assert set(states) <= {"completed", "waiting"}
    assert states["waiting"] == node.client.xlen("glide:{q}:stream")


def test_fact_23_a_job_that_is_too_old_expires(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    job_id = node.add(opts={"ttl": 1})
    eventually(lambda: node.now() > int(node.job(job_id)["expireAt"]))
    run_worker(["q"], {"work": lambda ctx: 1})
    eventually(lambda: node.job(job_id)["state"] == "failed")
    assert node.job(job_id)["failedReason"] == "expired"
    assert {"event": "expired", "jobId": job_id} in node.events()


def test_fact_24_ended_jobs_are_kept_by_age_and_count(
    node: Node, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    options = JobOptions(remove_on_complete=Keep(age=timedelta(seconds=10), count=5))
    ids = [queue.add("work", options=options) for _ in range(9)]
    assert json.loads(node.job(ids[0])["opts"])["removeOnComplete"] == {"age": 10, "count": 5}
    run_worker(["q"], {"work": lambda ctx: 1}, concurrency=1)
    eventually(lambda: node.client.xlen("glide:{q}:stream") == 0 and completed(node) == 5)
    assert [job_id for job_id in ids if node.job(job_id)] == ids[-5:]


def test_fact_25_progress_of_a_node_worker_is_received(node: Node, queue: Queue, url: str) -> None:
    job_id = node.add()
    with EventReader("q", url) as reader:
        reader.start()
        node.client.hset(f"glide:{{q}}:job:{job_id}", "progress", "50")
        node.client.xadd("glide:{q}:events", {"event": "progress", "jobId": job_id, "data": "50"})
        (event,) = reader.read(timedelta(seconds=5))
    assert (event.kind, event.job_id, event.fields["data"]) == ("progress", job_id, "50")
    assert queue.get_job(job_id).progress == 50


def test_fact_26_a_revoked_job_never_runs(node: Node, run_worker: RunWorker, eventually: Eventually) -> None:
    ran: list[str] = []
    revoked, after = node.add(), node.add()
    assert node.revoke(revoked) == "revoked"
    run_worker(["q"], {"work": lambda ctx: ran.append(ctx.job_id)})
    eventually(lambda: node.job(after)["state"] == "completed")
    assert ran == [after]
    assert (node.job(revoked)["state"], node.job(revoked)["failedReason"]) == ("failed", "revoked")


def test_fact_27_a_running_handler_is_told_that_its_job_is_revoked(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    begun, signalled = threading.Event(), threading.Event()

    def work(ctx: Any) -> str:
        begun.set()
        if ctx.cancelled.wait(20):
            signalled.set()
        return "done all the same"

    job_id = node.add()
    run_worker(["q"], {"work": work})
    assert begun.wait(20)
    assert node.revoke(job_id) == "flagged"
    assert signalled.wait(20)
    eventually(lambda: node.job(job_id)["state"] == "completed")
    assert node.job(job_id)["revoked"] == "1"


def test_fact_40_the_queues_own_limits_hold(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    node.client.hset("glide:{q}:meta", "globalConcurrency", 2)
    now, most, lock = [0], [0], threading.Lock()

    def work(ctx: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        ctx.cancelled.wait(0.01)
        with lock:
            now[0] -= 1

    for _ in range(30):
        node.add()
    run_worker(["q"], {"work": work}, concurrency=5)
    eventually(lambda: completed(node) == 30)
    assert most[0] == 2
    node.client.hset("glide:{q}:meta", mapping={"rateLimitMax": 3, "rateLimitDuration": 600_000})
    for _ in range(10):
        node.add()
    run_worker(["q"], {"work": work}, concurrency=5, rate_limit=RateLimit(100, HOUR))
    eventually(lambda: completed(node) == 33)
    assert node.client.hget("glide:{q}:rate", "count") == "3"
