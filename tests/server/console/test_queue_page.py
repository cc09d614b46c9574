"""What the page of a queue counts, and what it says before it retries."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    NewJob,
    Ordering,
    Queue,
    Suspend,
)
from glidemq_orchestrate.console import held, queue_pages, reader
from glidemq_orchestrate.jobs.states import JobState
from tests.server.console.conftest import WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker


def get(console: TestClient, path: str) -> Any:
    reply = console.get(path)
    assert reply.status_code == 200, reply.text
    return reply.json()


def stored(redis_client: Any) -> Counter[str]:
    """The jobs of the queue by state, from the server itself, without the slices of arrays."""
    keys = [key for key in redis_client.scan_iter("glide:{etl}:job:*") if redis_client.type(key) == "hash"]
    return Counter(redis_client.hget(key, "state") for key in keys if not key.endswith("}"))


def fails(_: Context) -> None:
    raise ValueError("no rows")


def test_the_counts_add_up_to_the_jobs_that_exist(  # noqa: PLR0917  fixtures
    console: TestClient,
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    redis_client: Any,
    eventually: Eventually,
) -> None:
    go_on = threading.Event()

    def hold(_: Context) -> None:
        assert go_on.wait(60)

    def suspends(_: Context) -> None:
        raise Suspend("approve")

    nodes = [
        ArrayNode("array", job="hold", over=range(100), max_running=1),
        FlowNode("report", job="done", after=["array"]),
        ArrayNode("later", job="done", over=range(10), after=["report"]),
    ]
    handlers = {"hold": hold, "suspends": suspends, "fails": fails, "done": lambda _: 1}
    queue.add_many([NewJob("hold", ordering=Ordering("k")) for _ in range(4)])
    queue.add_many([NewJob(name) for name in ("suspends", "fails", "done")])
    run_worker(["etl"], handlers, concurrency=3)
    wanted = {"active": 1, "group-waiting": 3, "suspended": 1, "failed": 1, "completed": 1}
    eventually(lambda: stored(redis_client) == wanted, 20)
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    eventually(lambda: get(console, "/api/queues/etl")["elements"]["running"] == 1, 20)
    queue.pause()
    queue.add_many([NewJob("done", delay=60), NewJob("done", priority=3), NewJob("done")])

    def counted() -> dict[str, int]:
        found, rest = get(console, "/api/queues/etl"), get(console, "/api/queues/etl/held")
        counts = {**found["counts"], **rest["counts"]}
        counts["active"] += found["elements"]["arrays"]
        return {state: count for state, count in counts.items() if count}

    eventually(lambda: counted() == stored(redis_client))
    assert (counted()["waiting-children"], counted()["group-waiting"]) == (2, 3)
    go_on.set()


def test_jobs_that_wait_for_others_are_counted_to_a_limit_and_not_all_the_time(
    console: TestClient, queue: Queue, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_EXAMINED", 1)
    nodes = [FlowNode("a"), *(FlowNode(f"b{at}", after=["a"]) for at in range(3_000))]
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    found = get(console, "/api/queues/etl/held")
    assert found["at_least"] == ["waiting-children"]
    assert 0 < found["counts"]["waiting-children"] < 3_000
    monkeypatch.setattr(held, "MAX_EXAMINED", 100_000)
    assert get(console, "/api/queues/etl/held") == found, "it is kept for a while"
    monkeypatch.setattr(held, "KEPT_SECONDS", 0)
    monkeypatch.setattr(held, "REST", 0)
    flows.submit(FlowSpec("n", [FlowNode("a", queue="other")]), flow_id="g")
    assert get(console, "/api/queues/other/held")["counts"] == {"waiting-children": 0, "group-waiting": 0}


def failed_jobs_and_nodes(
    queue: Queue, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    queue.add_many([NewJob("fails"), NewJob("fails")])
    worker = run_worker(["etl"], {"fails": fails})
    for name in ("f", "g/1"):
        nodes = [FlowNode("fails"), FlowNode("held back", job="fails", after=["fails"])]
        flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id=name).wait(timeout=20)  # f has failed first
    eventually(lambda: queue.counts()[JobState.FAILED] == 6, 20)
    worker.stop()


@pytest.mark.usefixtures("path")
def test_what_a_retry_of_the_failed_jobs_does_is_said_before(  # noqa: PLR0917  fixtures
    console: TestClient,
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed_jobs_and_nodes(queue, flows, run_worker, eventually)
    plan = get(console, "/api/queues/etl/retry-plan")
    stay = "4 failed nodes of flows stay as they are: retry their flows, f, g/1."
    assert (plan["text"], plan["jobs"]) == (f"Runs 2 failed jobs of this queue again. {stay}", 2)
    assert console.post("/api/queues/etl/retry-failed", headers=WRITES).json()["count"] == 2
    plan = get(console, "/api/queues/etl/retry-plan")
    assert (plan["text"], plan["jobs"]) == (f"No job runs again. {stay}", 0)
    monkeypatch.setattr(reader, "MAX_FAILED", 1)
    monkeypatch.setattr("glidemq_orchestrate.queues.listing.PAGE", 3)
    plan = get(console, "/api/queues/etl/retry-plan")
    assert plan["text"].startswith(
        "Runs all failed jobs of this queue again that are no nodes of flows: 0 of the 3 that failed first. "
        "4 have failed in all."
    )


def test_a_queue_says_what_its_retry_does_and_counts_what_is_held_back(
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    look: Callable[..., Page],
) -> None:
    failed_jobs_and_nodes(queue, flows, run_worker, eventually)
    waiting = [FlowNode("a"), FlowNode("b", after=["a"]), FlowNode("c", after=["a"])]
    flows.submit(FlowSpec("n", waiting, queue="etl"), flow_id="w")
    page = look("#/queues/etl")
    expect(page.locator(".legend").first).to_contain_text("2 waiting for dependencies")
    page.get_by_role("button", name="Retry failed jobs").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Runs 2 failed jobs of this queue again. 4 failed nodes of flows stay")
    dialog.get_by_role("button", name="Retry failed jobs").click()
    expect(page.locator(".told")).to_have_text("Retry failed jobs: 2 jobs.")
    page.get_by_role("button", name="Retry failed jobs").click()
    expect(dialog).to_contain_text("No job runs again.")
    expect(dialog.get_by_role("button")).to_have_text(["Close"])


def test_a_queue_says_which_of_its_numbers_may_be_higher(
    failed: Flow, look: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pages, "MAX_EXAMINED", 1)
    page = look("#/queues/etl")
    failures = page.get_by_role("region", name="Failures by cause")
    expect(failures).to_contain_text("Not all of their flows were read: they may hold back more nodes.")
    expect(failures).not_to_contain_text("Only the last failures were read")


def test_jobs_that_have_ended_are_listed_last_first_with_their_nodes(
    queue: Queue,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    look: Callable[..., Page],
) -> None:
    failed_jobs_and_nodes(queue, flows, run_worker, eventually)
    last = queue.add("fails")
    run_worker(["etl"], {"fails": fails})
    eventually(lambda: queue.counts()[JobState.FAILED] == 7, 20)
    page = look("#/queues/etl")
    failures = page.get_by_role("region", name="Failures by cause")
    failures.get_by_role("link", name=re.compile("and [0-9] more")).click()
    expect(page.locator("main")).to_contain_text("Those that ended last come first.")
    rows = page.get_by_role("region", name="Jobs").get_by_role("row")
    expect(rows.nth(1)).to_contain_text(last)
    page.get_by_role("link", name="g/1", exact=True).first.click()
    expect(page.locator("h1")).to_contain_text("failed")
    page.go_back()
    page.get_by_role("link", name="held back", exact=True).first.click()
    expect(page.locator("h1")).to_contain_text("held back")


def test_a_queue_of_which_only_arrays_wait_says_that_nobody_serves_it(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    flows.submit(FlowSpec("n", [ArrayNode("score", over=range(9), queue="etl")]), flow_id="f")
    page = look("#/queues/etl")
    expect(page.locator("main")).to_contain_text("And 1 open array: 0 elements running, 9 waiting")
    expect(page.locator("main")).to_contain_text("No worker serves this queue. Its jobs wait")


def test_a_queue_that_nobody_has_used_is_said_not_to_exist(queue: Queue, look: Callable[..., Page]) -> None:
    queue.add("clean")
    page = look("#/queues/elt")
    expect(page.locator("main")).to_contain_text("There is no queue with this name.")
    page.get_by_role("link", name="All queues").click()
    page.get_by_role("link", name="etl", exact=True).click()
    expect(page.locator("main")).to_contain_text("1 waiting")
    expect(page.locator("main")).not_to_contain_text("There is no queue")


def test_a_dead_letter_queue_needs_no_worker(  # noqa: PLR0917  fixtures
    console: TestClient,
    queue: Queue,
    url: str,
    run_worker: RunWorker,
    eventually: Eventually,
    look: Callable[..., Page],
) -> None:
    def fail(_: Context) -> None:
        raise ValueError("no rows")

    queue.set_dead_letter_queue("letters")
    queue.add("clean")
    run_worker(["etl"], {"clean": fail})
    with Queue("letters", url) as letters:
        eventually(lambda: letters.counts()[JobState.WAITING] == 1)
    assert console.get("/api/workers").json()["unserved"] == []
    rows = {row["name"]: row["dead_letters_of"] for row in console.get("/api/queues").json()["queues"]}
    assert rows == {"etl": [], "letters": ["etl"]}
    page = look("#/queues/letters")
    expect(page.locator("main")).to_contain_text(
        "It holds the dead letters of etl, which are replayed there."
    )
    expect(page.locator("main")).not_to_contain_text("No worker serves this queue. Its jobs")
    page.goto(f"{page.url.partition('#')[0]}#/queues")
    expect(page.locator("tbody")).to_contain_text("dead letters of etl")
    expect(page.locator("tbody")).not_to_contain_text("none serves it")
