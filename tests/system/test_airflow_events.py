"""What surrounds the operators, in a real Airflow: messages as asset events, sensors, notifications."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import redis
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import EmbeddedServer, JobOptions, JobState, Queue
from tests.system.real_airflow import HERE, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("bills", "ships", "senses", "alerts", "links")
DASHBOARD: Final = "https://mq.example.com/q/{queue}/j/{job_id} https://mq.example.com/f/{flow_id}"
MESSAGES: Final = 200
SECONDS: Final = 45


@pytest.fixture(scope="module")
def queue(server: EmbeddedServer) -> Iterator[Queue]:
    with Queue("system", server.url) as found:
        yield found


@pytest.fixture(scope="module")
def orders(server: EmbeddedServer) -> Iterator[Queue]:
    with Queue("orders", server.url) as found:
        yield found


@pytest.fixture(scope="module")
def dags() -> Path:
    return HERE / "airflow_events"


@pytest.fixture(scope="module")
def environment(place: Path) -> Mapping[str, str]:
    return {"BILLS_FILE": str(place / "bills.jsonl")}


@pytest.fixture(scope="module")
def connections(server: EmbeddedServer) -> Mapping[str, str | Mapping[str, Any]]:
    host, port = server.url.removeprefix("valkey://").split(":")
    extra = {"dashboard_url": DASHBOARD}
    return {
        "plain": server.url.replace("valkey://", "glidemq://"),
        "glidemq_default": {"conn_type": "glidemq", "host": host, "port": int(port), "extra": extra},
    }


def until(seconds: float, predicate: Callable[[], Any], told: Callable[[], Any]) -> None:
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, told()
        time.sleep(0.5)


def link(airflow: Airflow, run_id: str, task_id: str, index: int = -1) -> str | None:
    place = (
        f"/api/v2/dags/links/dagRuns/{quote(run_id, safe='')}/taskInstances/{task_id}/links?map_index={index}"
    )
    found: str | None = airflow._get(place)["extra_links"]["glide-mq"]
    return found


def billed(place: Path) -> Counter[int]:
    """How often each message has come to a DAG run."""
    file = place / "bills.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(json.loads(line)[1]["n"] for line in lines)


def test_no_message_is_lost_with_the_triggerer_or_after_a_bad_one(
    airflow: Airflow, orders: Queue, server: EmbeddedServer, place: Path
) -> None:
    ids: list[str] = []

    def send() -> None:
        with Queue("orders", server.url) as mine:
            for number in range(MESSAGES):
                ids.append(mine.add("order", {"n": number}))
                time.sleep(SECONDS / MESSAGES)

    sending = threading.Thread(target=send)
    sending.start()
    too_large = orders.add("order", "x" * 60_000)
    broken = orders.add("order", {"n": "broken"}, options=JobOptions(delay=timedelta(seconds=2)))
    with redis.Redis.from_url(server.url.replace("valkey://", "redis://")) as raw:
        raw.hset(f"glide:{{orders}}:job:{broken}", "data", "{no json")
    other = orders.add("shipment")
    until(120, lambda: billed(place), airflow.import_errors)
    for _ in range(2):
        time.sleep(4)
        airflow.kill("triggerer")
        airflow.start_again("triggerer")
    sending.join()
    wanted, due = set(range(MESSAGES)), time.monotonic() + 60

    def have_come() -> bool:
        """Airflow may leave the last event unnoticed until one more comes, as the README says."""
        nonlocal due
        if time.monotonic() > due:
            orders.add("order", {"n": MESSAGES})
            due = time.monotonic() + 60
        return wanted <= set(billed(place)) and set(orders.states(ids)) == {JobState.COMPLETED}

    until(
        240,
        have_come,
        lambda: (wanted - set(billed(place)), Counter(orders.states(ids)), airflow.runs("bills")),
    )
    found, runs = billed(place), airflow.runs("bills")
    sys.stdout.write(f"{MESSAGES} messages: {found.total()} came, in {len(runs)} DAG runs\n")
    assert set(found) - {MESSAGES} == wanted
    assert len(runs) < MESSAGES / 2
    until(30, lambda: set(orders.states([too_large, broken])) == {JobState.FAILED}, orders.counts)
    assert "60,002 bytes of JSON" in (orders.get_job(too_large).failed_reason or "")
    assert not orders.get_job(other).state.is_terminal
    log = (place / "airflow" / "triggerer.log").read_text()
    assert "messages of queue orders: jobs " in log
    assert "{'n': " not in log, "the log has what is in messages"


def test_messages_come_until_a_run_acknowledges_them(airflow: Airflow, server: EmbeddedServer) -> None:
    """Airflow leaves all but the first unnoticed until another event comes."""

    def shipped() -> set[int]:
        runs = [run for run, state in airflow.runs("ships").items() if state == "success"]
        return {n for run in runs for n in airflow.xcom("ships", run, "ship")}

    with Queue("parcels", server.url) as parcels:
        parcels.add("parcel", {"n": 0})
        until(60, lambda: "running" in airflow.runs("ships").values(), airflow.import_errors)
        for number in range(1, 6):
            parcels.add("parcel", {"n": number})
            time.sleep(1.2)
        until(150, lambda: shipped() == set(range(6)), lambda: (shipped(), airflow.runs("ships")))
        until(60, lambda: not any(parcels.counts().values()), parcels.counts)


def test_deferred_sensors_wake_when_it_is_so(airflow: Airflow, queue: Queue) -> None:
    job_id = queue.add("wait")
    run_id = airflow.trigger_dag("senses", {"job_id": job_id})
    for task_id in ("job", "idle"):
        airflow.wait_for_task("senses", run_id, task_id, ["deferred"])
    assert airflow.wait_for_task("senses", run_id, "poking", ["success", "failed"]) == "success"
    queue.revoke(job_id)
    assert airflow.wait_for_task("senses", run_id, "idle", ["success", "failed"]) == "success"
    assert airflow.wait_for_task("senses", run_id, "job", ["success", "failed"]) == "success"
    assert airflow.wait_for_task("senses", run_id, "never", ["skipped", "failed", "success"]) == "skipped"
    assert airflow.xcom("senses", run_id, "idle")["active"] == 0
    run_id = airflow.trigger_dag("senses", {"job_id": queue.add("fail")})
    airflow.wait_for_task("senses", run_id, "job", ["failed"])
    assert "month 13 does not exist" in airflow.task_log("senses", run_id, "job")


def test_a_failure_adds_the_jobs_of_its_notifications(airflow: Airflow, server: EmbeddedServer) -> None:
    run_id = airflow.trigger_dag("alerts")
    assert airflow.wait_for_run("alerts", run_id) == "failed"
    with Queue("alerts", server.url) as alerts:
        until(60, lambda: len(alerts.get_jobs(JobState.WAITING)) == 2, alerts.counts)
        found = {job.name: job.data for job in alerts.get_jobs(JobState.WAITING)}
    assert found["task"] == {"run": run_id}
    assert isinstance(found["dag"], dict)
    assert (found["dag"]["dag_id"], found["dag"]["run_id"]) == ("alerts", run_id)


def test_links_lead_to_the_dashboard_also_while_a_task_is_deferred(airflow: Airflow) -> None:
    run_id = airflow.trigger_dag("links")

    def leads_to(where: str, task_id: str, index: int = -1) -> None:
        """Airflow stores the link of a task just after its state."""
        found = partial(link, airflow, run_id, task_id, index)
        until(20, found, lambda: f"{task_id} has no link")
        assert found() == f"https://mq.example.com/{where}"

    airflow.wait_for_task("links", run_id, "flow", ["deferred"])
    leads_to(f"f/{flow_id_for('links', 'flow', run_id)}", "flow")
    for task_id in ("job", "plain", "mapped[1]"):
        assert airflow.wait_for_task("links", run_id, task_id, ["success", "failed"]) == "success"
    leads_to(f"q/system/j/{flow_id_for('links', 'job', run_id)}~echo", "job")
    leads_to(f"q/system/j/{flow_id_for('links', 'mapped', run_id, 1)}~echo", "mapped", 1)
    assert link(airflow, run_id, "plain") is None
    airflow.mark_task("links", run_id, "flow", "failed")
    assert airflow.wait_for_run("links", run_id) == "failed"
