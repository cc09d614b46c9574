"""What the page of the console says of the code of handlers, in a real browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Page, expect

from glidemq_orchestrate import Flow, Queue
from glidemq_orchestrate.clients.broadcast import Broadcast
from glidemq_orchestrate.worker.services.broadcast_worker import BroadcastWorker
from tests.server.console.conftest import work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunWorker


def test_a_node_a_job_and_a_worker_name_the_code_of_handlers(
    failed: Flow, queue: Queue, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    page = look("#/flows/night%2F1/nodes/extract")
    file = f"tests/server/console/conftest.py:{work.__code__.co_firstlineno}"
    code = page.locator(".facts div", has=page.locator("dt", has_text="Code")).locator("dd")
    expect(code).to_contain_text(f"{work.__module__}:work ({file})")
    page.goto(f"{page.url.partition('#')[0]}#/workers")
    expect(page.locator("tbody tr").first).to_contain_text(f"clean{work.__module__}:work ({file})")

    run_worker(["etl"], {"extract": lambda _: 1, "other": work})
    page.goto(f"{page.url.partition('#')[0]}#/queues/etl/jobs/{failed.node('extract').job_id}")
    expect(code).to_contain_text("Its workers have 2 versions")
    versions = code.locator("li")
    expect(versions).to_have_count(2)
    for worker, version in zip(queue.workers(), (work.__module__, __name__), strict=True):
        one = versions.filter(has_text=version)
        expect(one).to_contain_text(f"source {worker.code['extract'].digest} on {worker.host} {worker.pid}")


def test_odd_code_of_a_handler_is_text_and_none_is_said(
    queue: Queue, redis_client: Any, look: Callable[..., Page]
) -> None:
    job = queue.add("clean-0")
    page = look(f"#/queues/etl/jobs/{job}")
    code = page.locator(".facts div", has=page.locator("dt", has_text="Code")).locator("dd")
    expect(code).to_have_text("No worker that serves this handler is there now.")
    attack = "steps:<img src=x onerror=alert(1)>"
    names = [f"clean-{at}" for at in range(2_000)]
    registered = {
        "pid": 1,
        "addr": "h",
        "startedAt": 1,
        "handlers": names,
        "code": dict.fromkeys(names, attack),
    }
    redis_client.set("glide:{etl}:w:gmo-worker-1", json.dumps(registered))
    redis_client.zadd("glide:{etl}:gmo:workers", {"gmo-worker-1": 9e15})
    page.reload()
    expect(code).to_contain_text(attack)
    expect(page.locator("img")).to_have_count(0)
    page.goto(f"{page.url.partition('#')[0]}#/workers")
    page.get_by_text("2,000 handlers:").click()
    expect(page.locator("details li")).to_have_count(101)
    expect(page.locator("details li").first).to_contain_text(attack)
    expect(page.locator("details li").last).to_have_text("and 1,900 more")


def test_workers_of_subscriptions_are_shown_with_their_code(url: str, look: Callable[..., Page]) -> None:
    made = [BroadcastWorker("news", work, url, subscription=name) for name in ("billing", "audit")]
    with Broadcast("news", url) as news, made[0].running(), made[1].running():
        message = news.publish("order.paid")
        page = look(f"#/queues/news/jobs/{message}")
        code = page.locator(".facts div", has=page.locator("dt", has_text="Code")).locator("dd")
        for name in ("billing", "audit"):
            expect(code).to_contain_text(f"subscription {name}: {work.__module__}:work")
        page.goto(f"{page.url.partition('#')[0]}#/workers")
        expect(page.locator("tbody")).to_contain_text(f"subscription billing{work.__module__}:work")
        page.goto(f"{page.url.partition('#')[0]}#/queues")
        expect(page.locator("tbody")).to_contain_text("0, 2 of subscriptions")
