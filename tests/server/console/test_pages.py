"""What the console's service answers."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect

from glidemq_orchestrate import (
    ArrayNode,
    Backoff,
    Context,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobTemplate,
    NewJob,
    Ordering,
    Queue,
    RateLimit,
    Schedule,
)
from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts import workers as worker_ops
from glidemq_orchestrate.clients.schedules import Schedules
from glidemq_orchestrate.console import flow_pages
from glidemq_orchestrate.jobs.option_values import TokenBucket
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.server.console.conftest import SECRET, WRITES, spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

NIGHT = "/api/flows/night%2F1"


def get(console: TestClient, path: str, **params: Any) -> Any:
    reply = console.get(path, params=params)
    assert reply.status_code == 200, reply.text
    assert SECRET not in reply.text
    return reply.json()


def test_flows_are_listed_newest_first_in_pages(console: TestClient, flows: FlowProducer) -> None:
    for number in range(5):
        flows.submit(
            FlowSpec("n", [FlowNode("a", queue="etl")], labels={"dag": f"d{number}"}), flow_id=f"f{number}"
        )
    first = get(console, "/api/flows", limit=3)
    assert [flow["id"] for flow in first["flows"]] == ["f4", "f3", "f2"]
    second = get(console, "/api/flows", limit=3, cursor=first["next"])
    assert ([flow["id"] for flow in second["flows"]], second["next"]) == (["f1", "f0"], None)
    assert [flow["id"] for flow in get(console, "/api/flows", label="dag=d2")["flows"]] == ["f2"]
    flows.get("f1").cancel("enough")
    assert [flow["id"] for flow in get(console, "/api/flows", state="cancelled")["flows"]] == ["f1"]


@pytest.mark.parametrize("words", ["night", "SALES", "dag_id=sales r1", "night/1~clean[3]"])
def test_a_search_finds_ids_labels_and_jobs(console: TestClient, failed: Flow, words: str) -> None:
    assert [flow["id"] for flow in get(console, "/api/flows", search=words)["flows"]] == [failed.id]
    assert get(console, "/api/flows", search=f"{words} other")["flows"] == []


def test_a_search_finds_a_job_by_an_id_that_does_not_tell_its_flow(
    console: TestClient, flows: FlowProducer, queue: Queue, look: Callable[..., Page]
) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a b", queue="etl")]), flow_id="spaced")
    hashed = flows.get("spaced").node("a b").job_id
    assert "spaced" not in hashed
    found = get(console, "/api/flows", search=f" {hashed} ")
    assert ([flow["id"] for flow in found["flows"]], found["jobs"]) == (["spaced"], [])
    assert get(console, "/api/flows", search=f"{hashed} other")["flows"] == []
    assert get(console, "/api/flows", search=hashed, state="cancelled")["flows"] == []
    job_id = queue.add("clean")
    flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id=f"flow {job_id}")
    found = get(console, "/api/flows", search=job_id)
    assert [flow["id"] for flow in found["flows"]] == [f"flow {job_id}"]
    assert found["jobs"] == [{"queue": "etl", "id": job_id, "name": "clean", "state": "waiting"}]
    page = look(f"#/flows?search={job_id}")
    page.get_by_role("link", name=f"clean {job_id}").click()
    expect(page.locator("h1")).to_contain_text(job_id)


def test_a_search_says_where_it_stopped_and_goes_on(
    console: TestClient, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_pages, "MAX_SEARCHED", 3)
    monkeypatch.setattr(flow_pages, "SEARCH_PAGE", 3)
    for name in ("wanted", "a", "b", "c", "d"):
        flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id=name)
    first = get(console, "/api/flows", search="wanted")
    assert (first["flows"], first["next"].partition(":")[2], first["searched"]) == ([], "b", 3)
    more = get(console, "/api/flows", search="wanted", cursor=first["next"])
    assert [one["id"] for one in more["flows"]] == ["wanted"]
    assert (more["next"], more["searched"]) == (None, None)


def test_a_flow_is_folded_into_groups_in_layers(console: TestClient, failed: Flow) -> None:
    found = get(console, NIGHT)
    assert (found["flow"]["state"], found["layers"], found["is_exact"]) == ("failed", 3, True)
    extract, clean, report = found["groups"]
    assert (clean["label"], clean["count"], clean["after"]) == ("clean[0..11]", 12, [0])
    assert (clean["states"], clean["causes"]) == ({"completed": 11, "failed": 1}, 1)
    assert (report["states"], report["causes"], report["after"]) == ({"failed": 1}, 0, [1])
    assert [group["layer"] for group in (extract, clean, report)] == [0, 1, 2]
    assert extract["started_at"] <= clean["started_at"] <= clean["finished_at"]
    assert found["path"] == [0, 1]


def test_nodes_are_filtered_and_paged(console: TestClient, failed: Flow) -> None:
    page = get(console, f"{NIGHT}/nodes", group="clean[0..11]", offset=10)
    assert ([node["name"] for node in page["nodes"]], page["total"]) == (["clean[10]", "clean[11]"], 12)
    bad = get(console, f"{NIGHT}/nodes", state="failed")
    assert [node["name"] for node in bad["nodes"]] == ["clean[3]", "report"]
    assert get(console, f"{NIGHT}/nodes", search="clean[1*")["total"] == 3
    assert get(console, f"{NIGHT}/nodes", search="repo")["total"] == 1
    assert console.get(f"{NIGHT}/nodes", params={"group": "no"}).status_code == 404


def test_a_node_has_payloads_log_and_history_without_secrets(console: TestClient, failed: Flow) -> None:
    node = get(console, f"{NIGHT}/nodes/clean%5B4%5D")
    assert json.loads(node["result"]["text"]) == {"rows": 7, "password": "***"}
    assert json.loads(node["inputs"]["extract"]["text"])["rows"] == 7
    assert (node["logs"]["lines"], node["dependents"]) == (["clean[4] ran"], ["report"])
    assert [entry["what"] for entry in node["history"]][-1] == "completed"
    assert node["history_is_partial"] is True
    first = get(console, f"{NIGHT}/nodes/extract")
    assert (first["data"]["masked"], "<b>monday</b>" in first["data"]["text"]) == (1, True)
    bad = get(console, f"{NIGHT}/nodes/clean%5B3%5D")
    assert bad["reason"] == "ValueError: no rows in postgresql://me:***@db/x"


def test_failures_are_grouped_with_what_they_hold_back(console: TestClient, failed: Flow) -> None:
    (group,) = get(console, f"{NIGHT}/failures")["groups"]
    assert (group["group"], group["count"], group["held_back"]) == ("ValueError", 1, 1)
    assert group["examples"] == ["clean[3]"]


def test_the_timeline_has_waiting_and_running(console: TestClient, failed: Flow) -> None:
    found = get(console, f"{NIGHT}/timeline")
    assert found["total"] == 13
    bar = next(bar for bar in found["bars"] if bar["label"] == "clean[4]")
    assert found["start"] <= bar["ready_at"] <= bar["started_at"] <= bar["finished_at"] <= found["end"]
    assert any(bar["critical"] for bar in found["bars"])


def test_large_payloads_are_cut_with_a_way_to_the_whole(console: TestClient, flows: FlowProducer) -> None:
    text = "x" * 50_000
    flows.submit(FlowSpec("n", [FlowNode("a", data=[text], queue="etl")]), flow_id="f")
    data = get(console, "/api/flows/f/nodes/a")["data"]
    assert (data["is_cut"], len(data["text"])) == (True, 20_000)
    assert console.get("/api/flows/f/nodes/a/data").json() == [text]


def test_a_failed_flow_is_retried_restarted_and_cancelled(
    console: TestClient, failed: Flow, eventually: Eventually
) -> None:
    assert "Runs 2 nodes again" in get(console, f"{NIGHT}/plan", action="retry")["text"]
    assert console.post(f"{NIGHT}/retry", headers=WRITES).json() == {"state": "running"}
    eventually(lambda: get(console, NIGHT)["flow"]["state"] == "failed")
    assert console.post(f"{NIGHT}/nodes/extract/rerun", headers=WRITES).json()["changed"] == ["extract"]
    assert console.post(f"{NIGHT}/restart", headers=WRITES).status_code == 200
    eventually(lambda: get(console, NIGHT)["flow"]["generation"] == 1)
    eventually(lambda: get(console, NIGHT)["flow"]["state"] == "failed")


def test_what_running_a_node_again_or_ending_it_does_is_said_before(
    console: TestClient, failed: Flow, flows: FlowProducer
) -> None:
    text = get(console, f"{NIGHT}/nodes/clean%5B3%5D/plan", action="rerun")["text"]
    assert text == (
        "Runs clean[3] again, and 1 node after it that began or ended: report. Their results are removed. "
        "12 other completed nodes keep their results. The flow, which has ended, runs again."
    )
    found = get(console, f"{NIGHT}/nodes/extract/plan", action="rerun")
    assert found["nodes"] == 14
    assert "clean[0], clean[1], clean[2], clean[3], clean[4] and 8 more" in found["text"]
    waiting = [FlowNode("clean[3]"), FlowNode("report", after=["clean[3]"])]
    flows.submit(FlowSpec("n", waiting, queue="nobody"), flow_id="f")
    text = get(console, "/api/flows/f/nodes/clean%5B3%5D/plan", action="cancel")["text"]
    assert text == (
        "Ends clean[3] as failed. 1 node after it follows its rule, by which most cannot run: report."
    )
    assert console.get("/api/flows/f/nodes/no/plan", params={"action": "rerun"}).status_code == 404


def test_a_running_flow_is_cancelled_with_a_reason(console: TestClient, flows: FlowProducer) -> None:
    flows.submit(spec(), flow_id="f")
    reply = console.post("/api/flows/f/cancel", headers=WRITES, json={"reason": "wrong day"})
    assert reply.status_code == 200
    assert "wrong day" in flows.get("f").status().reason


def test_an_element_of_an_array_is_shown(
    console: TestClient, flows: FlowProducer, run_worker: RunWorker
) -> None:
    array = ArrayNode("clean", over=[{"n": 1}, {"n": 2}], queue="etl")
    flow = flows.submit(FlowSpec("n", [array]), flow_id="f")
    run_worker(["etl"], {"clean": lambda ctx: ctx.data["n"] * 10})
    flow.wait(timeout=30)
    (group,) = get(console, "/api/flows/f")["groups"]
    assert group["array"] == {"elements": 2, "completed": 2, "failed": 0, "skipped": 0}
    path = "/api/flows/f/nodes/clean%5B1%5D"
    assert (console.get(f"{path}/data").json(), console.get(f"{path}/result").json()) == ({"n": 2}, 20)
    element = get(console, path)
    assert (element["state"], element["result"]["text"]) == ("completed", "20")
    assert json.loads(element["data"]["text"]) == {"n": 2}
    assert element["element"] == {"array": "clean", "index": 1, "of": 2}
    assert get(console, "/api/flows/f/nodes/clean")["element"] is None


def test_names_may_contain_anything(console: TestClient, flows: FlowProducer) -> None:
    name = "a/b %25 ?&#é/nodes/x"
    flows.submit(FlowSpec("n", [FlowNode(name, data={"k": 1}, queue="etl")]), flow_id="f/nodes/g")
    path = "/api/flows/f%2Fnodes%2Fg/nodes/a%2Fb%20%2525%20%3F%26%23%C3%A9%2Fnodes%2Fx"
    assert get(console, path)["name"] == name
    assert console.get(f"{path}/data").json() == {"k": 1}


def test_a_name_of_dots_is_no_part_that_browsers_leave_out(console: TestClient, flows: FlowProducer) -> None:
    for name in ("..", "."):
        flow = flows.submit(
            FlowSpec("n", [FlowNode(name, queue="etl"), FlowNode("b", queue="etl")]), flow_id=name
        )
        path = f"/api/flows/%FF{name}/nodes/%FF{name}"
        assert (get(console, f"/api/flows/%FF{name}")["flow"]["id"], get(console, path)["name"]) == (
            name,
            name,
        )
        assert console.post(f"{path}/cancel", headers=WRITES).status_code == 200
        assert (flow.node("b").state, flow.status().state) == ("waiting", "running")


def test_queues_workers_and_schedules(
    console: TestClient, failed: Flow, queue: Queue, url: str, flows: FlowProducer
) -> None:
    queue.add_many([NewJob("other", delay=60)])
    with Schedules("etl", url) as schedules, Queue("lonely", url) as lonely:
        schedules.upsert("nightly", Schedule(cron="0 3 * * *", time_zone="Europe/Berlin"))
        lonely.add("waits")
        rows = {row["name"]: row for row in get(console, "/api/queues")["queues"]}
        assert (rows["etl"]["counts"]["delayed"], rows["etl"]["workers"]) == (1, 1)
        found = get(console, "/api/workers")
        assert found["unserved"] == ["lonely"]
        assert found["workers"][0]["queues"] == ["etl"]
        (schedule,) = get(console, "/api/schedules")["schedules"]
        assert (schedule["when"], schedule["zone"], schedule["queue"]) == (
            "0 3 * * *",
            "Europe/Berlin",
            "etl",
        )
        about = get(console, "/api/queues/etl")
        assert (about["failures"][0]["group"], about["counts"]["failed"]) == ("ValueError", 2)
        assert sum(minute["completed"] for minute in about["minutes"]) == 12
        page = get(console, "/api/queues/etl/jobs", state="failed", limit=1)
        assert (len(page["jobs"]), page["next"]) == (1, 1)


def test_a_queue_has_rates_of_an_hour_and_a_day(console: TestClient, failed: Flow) -> None:
    about = get(console, "/api/queues/etl")
    for span in ("hour", "day"):
        assert (about[span]["completed"], about[span]["failed"]) == (12, 1)
        assert 0 <= about[span]["mean"] < 10
        assert {*about[span]["waiting"], *about[span]["running"]} == {"mean", "p50", "p95", "p99"}
    assert sum(quarter["completed"] for quarter in about["quarters"]) == 12
    assert about["quarters"][-1]["at"] <= about["minutes"][-1]["at"]
    day = get(console, "/api/queues/etl/statistics")
    assert (day["days"][0], len(day["days"])) == (day["day"], 31)
    assert {one["handler"] for one in day["handlers"]} <= {"extract", "clean"}
    before = get(console, "/api/queues/etl/statistics", day=day["days"][3])
    assert (before["day"], before["handlers"]) == (day["days"][3], [])
    for odd in ("yesterday", "2026-02-31", "1999-01-01"):
        assert console.get("/api/queues/etl/statistics", params={"day": odd}).status_code == 400


def test_ordering_keys_and_the_limits_of_a_queue(
    console: TestClient, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    go_on = threading.Event()
    queue.set_global_concurrency(7)
    queue.set_global_rate_limit(RateLimit(100, 3600))
    bucket = TokenBucket(capacity=10, refill_per_second=0.5)
    queue.add_many([
        *(NewJob("held", ordering=Ordering("busy")) for _ in range(3)),
        NewJob("held", ordering=Ordering("costly", rate_limit=RateLimit(5, 60), token_bucket=bucket)),
        NewJob("held", ordering=Ordering("paused")),
    ])  # fmt: skip
    queue.rate_limit_group("paused", 600)
    run_worker(["etl"], {"held": lambda _: go_on.wait(60)}, concurrency=4)
    try:
        eventually(lambda: get(console, "/api/queues/etl/keys")["keys"][0]["parked"] == 2)
        eventually(lambda: get(console, "/api/queues/etl")["counts"]["active"] == 2)
        found = get(console, "/api/queues/etl/keys")
        keys = {one["key"]: one for one in found["keys"]}
        assert (found["total"], found["is_partial"], found["keys"][0]["key"]) == (3, False, "busy")
        assert (keys["busy"]["active"], keys["busy"]["concurrency"], keys["busy"]["rate"]) == (1, 1, None)
        assert keys["costly"]["rate"] == {"max": 5, "seconds": 60.0, "started": 1}
        tokens = keys["costly"]["tokens"]
        assert (tokens["capacity"], tokens["per_second"], 9 <= tokens["held"] < 10) == (10.0, 0.5, True)
        assert (keys["paused"]["active"], keys["paused"]["paused_until"] is not None) == (0, True)
        assert len(get(console, "/api/queues/etl/keys", limit=1)["keys"]) == 1
        limits = get(console, "/api/queues/etl")["limits"]
        assert limits["concurrency"] == 7
        assert (limits["rate"]["max"], limits["rate"]["seconds"]) == (100, 3600.0)
        assert limits["rate"]["started"] >= 2
    finally:
        go_on.set()


def test_tags_tracked_jobs_and_histories(console: TestClient, queue: Queue, flows: FlowProducer) -> None:
    job_id = queue.add("clean", tags=["monthly", "customer 7"])
    queue.add("clean", tags=["monthly"])
    flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id="f").track()
    found = get(console, "/api/queues/etl/tags")
    assert found["tags"] == [{"tag": "monthly", "count": 2}, {"tag": "customer 7", "count": 1}]
    (job,) = get(console, "/api/queues/etl/jobs", tag="customer 7")["jobs"]
    assert (job["id"], job["tags"]) == (job_id, ["monthly", "customer 7"])
    path = f"/api/queues/etl/jobs/{job_id}"
    assert get(console, path)["tracked"] is False
    assert console.post(f"{path}/track", headers=WRITES).json() == {"ok": True}
    about = get(console, path)
    assert (about["tracked"], about["history_is_partial"]) == (True, True)
    assert [entry["what"] for entry in about["history"]] == ["added", "tracked"]
    tracked = {one["kind"]: one for one in get(console, "/api/queues/etl/tracked")["tracked"]}
    assert (tracked["flow"]["id"], tracked["flow"]["flow"]["total"]) == ("f", 1)
    assert (tracked["job"]["id"], tracked["job"]["state"]) == (job_id, "waiting")
    assert console.post(f"{path}/untrack", headers=WRITES).json() == {"ok": True}
    assert [one["kind"] for one in get(console, "/api/queues/etl/tracked")["tracked"]] == ["flow"]


def test_jobs_that_have_stalled_and_lost_workers(
    console: TestClient, queue: Queue, hand: Hand, look: Callable[..., Page]
) -> None:
    job_id, lost = queue.add("clean"), "gmo-worker-1-lost"
    keys, past = QueueKeys("glide", "etl"), int(queue.now().timestamp() * 1000) - 90_000
    hand.run(worker_ops.open_queues([keys]))
    hand.run(ask(exchange.finish_and_fetch(keys, lost, exchange.Request((), 1, f"{lost}/t"), past)))
    stalled = get(console, "/api/queues/etl")["stalled"]
    (job,) = stalled["jobs"]
    assert (job["id"], job["worker"], job["lease_until"] is not None) == (job_id, lost, True)
    assert stalled["lost_workers"] == [{"id": lost, "jobs": 1}]
    assert get(console, "/api/workers")["lost"] == [{"queue": "etl", "id": lost, "jobs": 1}]
    page = look("#/workers")
    expect(page.get_by_role("region", name="Lost workers")).to_have_text(
        f"Lost workers{lost}: 1 job of etl waits for another worker"
    )


def test_a_group_of_failures_runs_again(
    console: TestClient, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    broken = threading.Event()
    broken.set()

    def work(ctx: Context) -> None:
        if broken.is_set():
            raise ValueError(ctx.data["text"])

    queue.add_many([NewJob("work", {"text": text}) for text in ("a", "b")])
    run_worker(["etl"], {"work": work})
    eventually(lambda: [one["count"] for one in get(console, "/api/queues/etl")["failures"]] == [2])
    broken.clear()
    path = "/api/queues/etl/retry-group"
    assert console.post(path, headers=WRITES, json={"group": "KeyError"}).json()["count"] == 0
    assert console.post(path, headers=WRITES, json={"group": "ValueError"}).json()["count"] == 2
    eventually(lambda: get(console, "/api/queues/etl")["failures"] == [])


def test_a_group_whose_name_has_a_secret_runs_again_by_its_masked_name(
    console: TestClient, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> None:
        ctx.fail("no", group=f"valkey://me:{SECRET}@db")

    queue.add_many([NewJob("work"), NewJob("work")])
    worker = run_worker(["etl"], {"work": work})
    eventually(lambda: queue.counts()[JobState.FAILED] == 2)
    worker.stop()
    (group,) = get(console, "/api/queues/etl")["failures"]
    assert (group["group"], group["nodes"]) == ("valkey://me:***@db", 0)
    body = {"group": group["group"]}
    assert console.post("/api/queues/etl/retry-group", headers=WRITES, json=body).json()["count"] == 2


def test_a_queue_is_paused_and_its_dead_letters_are_replayed(
    console: TestClient, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    assert console.post("/api/queues/etl/pause", headers=WRITES).json() == {"ok": True}
    assert queue.is_paused()
    assert console.post("/api/queues/etl/resume", headers=WRITES).json() == {"ok": True}
    queue.set_dead_letter_queue("dead")
    queue.add("breaks")
    worker = run_worker(["etl"], {"breaks": lambda ctx: 1 / 0})
    eventually(lambda: get(console, "/api/queues/etl")["dead_letters"] == {"queue": "dead", "count": 1})
    worker.stop()
    reply = console.post("/api/queues/etl/replay-dead-letters", headers=WRITES)
    assert reply.json() == {"ok": True, "count": 1}
    assert get(console, "/api/queues/etl")["dead_letters"]["count"] == 0


def test_a_schedule_runs_now_with_its_options_or_says_which_it_would_lack(
    console: TestClient, queue: Queue, url: str
) -> None:
    with Schedules("etl", url) as schedules:
        plain = JobTemplate(
            "clean", {"k": 1}, attempts=3, backoff=Backoff(delay=2), ttl=60, priority=4, tags=["a"]
        )
        schedules.upsert("nightly", Schedule(cron="0 3 * * *"), plain)
        schedules.upsert("ordered", Schedule(every=60), JobTemplate("clean", ordering=Ordering("x")))
        reply = console.post("/api/queues/etl/schedules/nightly/run", headers=WRITES)
        job = queue.get_job(reply.json()["job_id"])
        assert (job.name, job.data, job.options.attempts, job.priority, job.tags) == (
            "clean",
            {"k": 1},
            3,
            4,
            ("a",),
        )
        refused = console.post("/api/queues/etl/schedules/ordered/run", headers=WRITES)
        assert (refused.status_code, "options ordering" in refused.json()["error"]) == (400, True)


def test_a_schedule_has_its_next_times_and_last_runs(
    console: TestClient, queue: Queue, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    with Schedules("etl", url) as schedules:
        schedules.upsert("often", Schedule(every=0.2, limit=3), JobTemplate("clean", {"password": SECRET}))
        schedules.upsert("nightly", Schedule(cron="0 3 * * *", time_zone="Europe/Berlin"))
        end = datetime.now(UTC) + timedelta(hours=5)
        schedules.upsert("hourly", Schedule(every=timedelta(hours=2), end=end))
        schedules.upsert("after", Schedule(repeat_after_complete=3600))
        run_worker(["etl"], {"clean": lambda _: 1, "after": lambda _: 1})

        def read(name: str) -> Any:
            return get(console, f"/api/queues/etl/schedules/{name}")

        queue.add("other")
        eventually(lambda: [job["state"] for job in read("often")["last"]] == ["completed"] * 3)
        often = read("often")
        assert (often["runs"], often["limit"], often["finished"], often["next"]) == (3, 3, True, [])
        assert json.loads(often["data"]["text"]) == {"password": "***"}
        times = [datetime.fromisoformat(at) for at in read("nightly")["next"]]
        berlin = {at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") for at in times}
        assert (len(times), times == sorted(set(times)), berlin) == (10, True, {"03:00"})
        assert len(read("hourly")["next"]) in (2, 3)
        assert [read(name)["when"] for name in ("often", "hourly", "after")] == [
            "every 0.2 s",
            "every 2 h",
            "1 h after each end",
        ]
        assert len(read("after")["next"]) <= 1
        assert console.get("/api/queues/etl/schedules/no").status_code == 404


def test_a_job_names_the_schedule_that_added_it(
    console: TestClient, queue: Queue, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    with Schedules("etl", url) as schedules:
        for name in ("night/ly", "weekly"):
            schedules.upsert(name, Schedule(every=0.1, limit=1), JobTemplate("clean"))
        run_worker(["etl"], {"clean": lambda _: 1})
        path = "/api/queues/etl/schedules/night%2Fly"
        (job,) = eventually(lambda: get(console, path)["last"])
        assert get(console, f"/api/queues/etl/jobs/{job['id']}")["schedule"] == job["schedule"] == "night/ly"
        own = queue.add("clean")
        assert get(console, f"/api/queues/etl/jobs/{own}")["schedule"] == ""


def test_nodes_of_flows_are_no_runs_of_a_schedule(console: TestClient, flows: FlowProducer, url: str) -> None:
    flows.submit(FlowSpec("n", [FlowNode("clean", queue="etl")]), flow_id="f")
    with Schedules("etl", url) as schedules:
        schedules.upsert("nightly", Schedule(cron="0 3 * * *"), JobTemplate("clean"))
    assert get(console, "/api/queues/etl/schedules/nightly")["last"] == []


def test_a_schedule_is_paused_and_resumed(console: TestClient, url: str) -> None:
    with Schedules("etl", url) as schedules:
        schedules.upsert("nightly", Schedule(cron="0 3 * * *"))
        path = "/api/queues/etl/schedules/nightly"
        assert get(console, path)["paused"] is False
        assert console.post(f"{path}/pause", headers=WRITES).json() == {"ok": True}
        found = get(console, path)
        assert (found["paused"], found["next_at"], found["next"]) == (True, None, [])
        assert get(console, "/api/schedules")["schedules"][0]["paused"] is True
        assert schedules.get("nightly").paused
        assert console.post(f"{path}/resume", headers=WRITES).json()["next_at"] is not None
        assert len(get(console, path)["next"]) == 10
        assert console.post("/api/queues/etl/schedules/no/pause", headers=WRITES).status_code == 404


def test_workers_tell_their_memory_places_and_last_heartbeat(
    console: TestClient, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    go_on = threading.Event()
    queue.add("held")
    run_worker(["etl"], {"held": lambda _: go_on.wait(60)}, concurrency=4)
    try:
        eventually(lambda: get(console, "/api/workers")["workers"])
        (row,) = get(console, "/api/workers")["workers"]
        assert (row["concurrency"], row["memory"] > 10_000_000) == (4, True)
        assert row["running"] in (0, 1)
        assert row["seen_at"] >= row["started_at"][:19]
        eventually(lambda: get(console, "/api/queues/etl")["workers"][0]["jobs"])
    finally:
        go_on.set()


def test_garbage_in_a_job_is_shown_as_such(
    console: TestClient, flows: FlowProducer, redis_client: Any
) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl"), FlowNode("b", queue="etl")]), flow_id="f")
    redis_client.hset(f"glide:{{etl}}:job:{flow.node('a').job_id}", mapping={"data": "{", "state": "odd"})
    assert get(console, "/api/flows/f")["groups"][0]["states"] == {"unknown": 1}
    assert get(console, "/api/flows/f/nodes/a")["state"] == "unknown"


def test_unknown_things_are_404_and_bad_filters_400(console: TestClient) -> None:
    for path in ("/api/flows/no", "/api/flows/no/nodes", "/api/flows/no/live", "/api/queues/etl/jobs/no"):
        reply = console.get(path)
        assert (reply.status_code, bool(reply.json()["error"])) == (404, True), path
    reply = console.get("/api/flows", params={"state": "odd"})
    assert (reply.status_code, "state" in reply.json()["error"]) == (400, True)
    reply = console.get("/api/flows", params={"label": "sales"})
    assert (reply.status_code, "key=value" in reply.json()["error"]) == (400, True)


@pytest.mark.parametrize("nodes", [10_000])
def test_a_large_flow_costs_few_calls(
    console: TestClient, flows: FlowProducer, redis_client: Any, nodes: int
) -> None:
    parts = [f"part-{at}" for at in range(nodes)]
    every = [
        FlowNode("a"),
        *(FlowNode(name, job="p", after=["a"]) for name in parts),
        FlowNode("end", after=parts),
    ]
    flows.submit(FlowSpec("n", every, queue="nobody"), flow_id="f")
    get(console, "/api/about")

    def calls() -> int:
        stats = redis_client.info("commandstats")
        return sum(one["calls"] for name, one in stats.items() if name in ("cmdstat_fcall", "cmdstat_hscan"))

    before = calls()
    found = get(console, "/api/flows/f")
    assert [group["label"] for group in found["groups"]] == ["a", f"part-0..{nodes - 1}", "end"]
    assert calls() - before <= 15
    before = calls()
    assert get(console, "/api/flows/f/head")["flow"]["total"] == nodes + 2
    assert calls() - before <= 3


def test_a_read_only_console_has_no_route_that_changes(open_console: Callable[..., TestClient]) -> None:
    console = open_console(read_only=True)
    assert get(console, "/api/about")["read_only"] is True
    paths = get(console, "/api/openapi.json")["paths"]
    assert {method for path in paths.values() for method in path} == {"get"}
    assert console.post("/api/queues/etl/pause", headers=WRITES).status_code in (404, 405)


def test_a_link_by_labels_opens_the_flow_or_the_list(console: TestClient, flows: FlowProducer) -> None:
    run = "manual__2026-11-30T00:00:00+00:00"
    for task, index in (("a", ""), ("b", "0"), ("b", "1")):
        labels = {"dag_id": "d", "run_id": run, "task_id": task} | ({"map_index": index} if index else {})
        spec = FlowSpec("n", [FlowNode("x", queue="etl")], labels=labels)
        flows.submit(spec, flow_id=f"f/{task}{index}")

    def target(query: str) -> str:
        reply = console.get(f"/of?{query}", follow_redirects=False)
        assert reply.status_code == 303
        return str(reply.headers["location"])

    for text in (run.replace("+", "%2B"), run):
        for unmapped in ("-1", "{MAP_INDEX}", ""):
            assert target(f"dag_id=d&run_id={text}&task_id=a&map_index={unmapped}") == "./#/flows/f%2Fa"
        assert target(f"dag_id=d&run_id={text}&task_id=b&map_index=1") == "./#/flows/f%2Fb1"
    assert target("dag_id=d&run_id=none").startswith("./#/flows?search=dag_id%3Dd%20run_id%3Dnone")
    assert target("dag_id=d").startswith("./#/flows?search=")
