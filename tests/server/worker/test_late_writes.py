"""What is written about a job that was removed meanwhile is written nowhere, and no later job shows it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import BroadcastWorker, JobOptions
from glidemq_orchestrate.jobs.usage import Usage

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients

MINE = JobOptions(job_id="mine")
LISTED = JobOptions(job_id="mine", lifo=True)


class Held:
    """A handler that goes on only when the test says so, and then reports all that it can."""

    def __init__(self) -> None:
        self.begun, self.go, self.done = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, ctx: Any) -> None:
        self.begun.set()
        assert self.go.wait(30)
        ctx.log("of the old job")
        ctx.progress(50)
        ctx.output({"of": "the old job"})
        ctx.report_usage(Usage(model="m", tokens={"in": 5}))
        self.done.set()


def of_job(client: Any, job_id: str) -> list[str]:
    """The keys of a job."""
    return sorted(str(key) for key in client.keys(f"glide:{{etl}}:*{job_id}"))


@pytest.mark.parametrize("is_new", [False, True])
def test_a_handler_of_a_removed_job_writes_nothing(
    clients: Clients,
    redis_client: Any,
    run_worker: RunWorker,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    *,
    is_new: bool,
) -> None:
    queue, held = clients.queue(), Held()
    run_worker(["etl"], {"work": held, "next": lambda ctx: ctx.log("of the new job")})
    queue.add("work", {}, options=LISTED)
    assert held.begun.wait(30)
    queue.remove("mine")
    assert redis_client.exists("glide:{etl}:gmo:list-held") == 0
    if is_new:
        queue.add("next", {}, options=MINE)
        eventually(lambda: queue.get_job("mine").state == "completed")
    before = of_job(redis_client, "mine")
    held.go.set()
    assert held.done.wait(30)
    eventually(lambda: "outcome not accepted" in caplog.text)
    assert of_job(redis_client, "mine") == (before if is_new else [])
    assert not is_new or queue.usage("mine") is None
    lines = queue.logs("mine").lines
    assert lines == (["of the new job"] if is_new else [])


def test_what_is_left_of_a_job_is_no_job(clients: Clients, redis_client: Any) -> None:
    """A worker in Node writes its heartbeats and logs without looking."""
    queue = clients.queue()
    redis_client.hset("glide:{etl}:job:mine", "lastActive", 1)
    redis_client.rpush("glide:{etl}:log:mine", "of the old job")
    assert queue.add("work", {"n": 1}, options=MINE) == "mine"
    assert queue.get_job("mine").data == {"n": 1}
    assert queue.logs("mine").lines == []


def test_a_subscriber_of_a_removed_message_writes_nothing(
    url: str, clients: Clients, redis_client: Any, eventually: Eventually
) -> None:
    begun, go = threading.Event(), threading.Event()

    def handle(ctx: Any) -> None:
        begun.set()
        assert go.wait(30)
        ctx.log("late")
        ctx.progress(1)

    lock = timedelta(seconds=1)
    worker = BroadcastWorker("etl", handle, url, subscription="s", start_from="0-0", lease=lock)
    with worker.running():
        clients.queue().add("news", {}, options=MINE)
        assert begun.wait(30)
        clients.queue().remove("mine")
        go.set()
        eventually(lambda: redis_client.xpending("glide:{etl}:stream", "s")["pending"] == 0)
    assert of_job(redis_client, "mine") == []
