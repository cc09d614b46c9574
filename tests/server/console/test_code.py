"""Where the console says that the code of a handler is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Context, Flow, FlowNode, FlowProducer, FlowSpec, JobOptions, Queue
from glidemq_orchestrate.clients.broadcast import Broadcast
from glidemq_orchestrate.worker.services.broadcast_worker import BroadcastWorker
from tests.server.console.conftest import SECRET, work
from tests.server.console.test_pages import NIGHT, get

if TYPE_CHECKING:
    import pytest
    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker


def test_the_code_of_a_node_is_shown_where_its_data_names_it(
    console: TestClient, flows: FlowProducer
) -> None:
    nodes = [
        FlowNode("a", job="python", data={"callable": "mypackage.steps:clean"}),
        FlowNode("b", job="other", data={"callable": "x"}),
        FlowNode("c", job="python", data=["callable"]),
    ]
    flows.submit(FlowSpec("n", nodes, queue="etl"), flow_id="f")
    codes = [get(console, f"/api/flows/f/nodes/{name}")["code"] for name in "abc"]
    assert codes == ["mypackage.steps:clean", "", ""]


def other_work(ctx: Context) -> Any:
    return work(ctx)


def place_of(function: Any) -> dict[str, str]:
    """Where the code of a function of this module is, as the page is told."""
    file = f"{function.__module__.replace('.', '/')}.py:{function.__code__.co_firstlineno}"
    return {"path": f"{function.__module__}:{function.__name__}", "file": file}


def test_a_node_and_a_job_have_the_code_of_their_handler(
    console: TestClient, failed: Flow, queue: Queue
) -> None:
    for path in (f"{NIGHT}/nodes/extract", f"/api/queues/etl/jobs/{failed.node('report').job_id}"):
        about = get(console, path)
        (version,) = about["handler"]["code"]
        assert version | place_of(work) == version
        ((worker,), row) = version["workers"], get(console, "/api/workers")["workers"][0]
        assert (about["code"], about["handler"]["served_by"], version["count"]) == ("", 1, 1)
        assert (worker["id"], worker["host"], worker["pid"]) == (row["id"], row["host"], row["pid"])
    assert row["code"]["clean"] | place_of(work) == row["code"]["clean"]
    assert get(console, "/api/queues/etl")["workers"][0]["code"] == row["code"]


def test_workers_with_other_code_are_told_apart(
    console: TestClient, queue: Queue, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for function in (work, other_work, work):
        run_worker(["etl"], {"clean": function})
    assert "has other code for handler clean" in caplog.text
    job = queue.add("clean", delay=60)
    found = get(console, f"/api/queues/etl/jobs/{job}")["handler"]
    assert found["served_by"] == 3
    assert [(one["count"], len(one["workers"])) for one in found["code"]] == [(2, 2), (1, 1)]
    for one, function in zip(found["code"], (work, other_work), strict=True):
        assert one | place_of(function) == one
    assert len({one["digest"] for one in found["code"]}) == 2


def test_the_code_of_a_message_is_that_of_its_subscriptions(
    console: TestClient, url: str, eventually: Eventually
) -> None:
    billing, audit = (
        BroadcastWorker("news", function, url, subscription=name)
        for function, name in ((work, "billing"), (other_work, "audit"))
    )
    with Broadcast("news", url) as news, billing.running(), audit.running():
        message = news.publish("order.paid")
        path = f"/api/queues/news/jobs/{message}"
        about = eventually(lambda: (found := get(console, path)["handler"])["served_by"] == 2 and found)
        codes = {one["subscription"]: one for one in about["code"]}
        for name, function in (("billing", work), ("audit", other_work)):
            assert codes[name] | place_of(function) == codes[name]
        rows = {row["subscription"]: row for row in get(console, "/api/workers")["workers"]}
        assert rows["billing"]["code"]["billing"] | place_of(work) == rows["billing"]["code"]["billing"]
        assert (rows["audit"]["handlers"], rows["audit"]["kind"]) == ([], "Python")


def test_a_subscription_serves_no_jobs(console: TestClient, url: str, eventually: Eventually) -> None:
    with Queue("news", url) as queue, BroadcastWorker("news", work, url, subscription="all").running():
        (found,) = eventually(queue.workers)
        assert not found.runs_jobs
        queue.add("waits", options=JobOptions(priority=1))
        assert eventually(lambda: get(console, "/api/workers")["unserved"]) == ["news"]
        (row,) = get(console, "/api/queues")["queues"]
        assert (row["name"], row["workers"], row["subscribers"]) == ("news", 0, 1)
        assert 'glidemq_queue_workers{queue="news"} 0.0' in console.get("/metrics").text


def test_a_handler_that_nobody_serves_or_nobody_tells_of_is_shown_as_such(
    console: TestClient, queue: Queue, flows: FlowProducer, redis_client: Any
) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a", job="clean", queue="etl")]), flow_id="f")
    paths = "/api/flows/f/nodes/a", f"/api/queues/etl/jobs/{queue.add('clean', delay=60)}"
    for path in paths:
        assert get(console, path)["handler"] == {"served_by": 0, "code": []}
    older: dict[str, Any] = {"pid": 1, "addr": "h", "startedAt": 1, "handlers": ["clean"]}
    odd: list[dict[str, Any]] = [{}, {"code": 7, "files": "x"}, {"code": {"clean": {}}}]
    for at, garbage in enumerate(odd):
        redis_client.set(f"glide:{{etl}}:w:gmo-worker-{at}", json.dumps(older | garbage))
        redis_client.zadd("glide:{etl}:gmo:workers", {f"gmo-worker-{at}": 9e15})
    for path in paths:
        assert get(console, path)["handler"] == {"served_by": 3, "code": []}
    redis_client.delete("glide:{etl}:gmo:workers")
    redis_client.set("glide:{etl}:gmo:workers", "x")
    assert get(console, paths[1])["handler"] is None


def test_odd_code_in_a_registration_is_shown_without_secrets(
    console: TestClient, queue: Queue, redis_client: Any
) -> None:
    odd = {"path": "a:<b>\ud800</b>", "files": f"token={SECRET}"}
    names = [f"clean-{at}" for at in range(2_000)]
    registered = {
        "pid": 1, "addr": "h", "startedAt": 1, "handlers": names,
        "code": dict.fromkeys(names, odd["path"]), "files": dict.fromkeys(names, odd["files"]),
    }  # fmt: skip
    redis_client.set("glide:{etl}:w:gmo-worker-1", json.dumps(registered))
    redis_client.zadd("glide:{etl}:gmo:workers", {"gmo-worker-1": 9e15})
    (version,) = get(console, f"/api/queues/etl/jobs/{queue.add('clean-7')}")["handler"]["code"]
    assert (version["path"], version["file"]) == ("a:<b>\ufffd</b>", "token=***")
    (worker,) = get(console, "/api/workers")["workers"]
    assert (len(worker["handlers"]), len(worker["code"])) == (2_000, 100)
