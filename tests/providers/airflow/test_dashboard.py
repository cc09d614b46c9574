"""The link of a task to a dashboard."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook
from airflow_provider_glidemq.links.glidemq import GlideMQLink
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator, flow_id_for
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor, GlideMQJobSensor, GlideMQQueueSensor
from airflow_provider_glidemq.version_compat import TaskDeferred

from glidemq_orchestrate import Queue, Worker
from glidemq_orchestrate.dashboard import check_templates, link_to
from glidemq_orchestrate.errors import ConfigurationError
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey, chain

URLS = "https://mq/q/{queue}/j/{job_id} https://mq/f/{flow_id} https://mq/q/{queue}"

NO_URLS: list[str] = [
    "mq/{flow_id}", "javascript:alert({flow_id})", "https://{flow}", "https://{}", "https://mq/{flow_id!r}",
    "https://mq/{queue:9}", "https://mq/{queue.x}", "https://mq/{", "https:///{queue}",
]  # fmt: skip


def test_the_first_url_whose_places_are_known_is_taken() -> None:
    assert link_to(URLS, {"queue": "a b/c", "job_id": "1"}) == "https://mq/q/a%20b%2Fc/j/1"
    assert link_to(URLS, {"queue": "q", "flow_id": "f"}) == "https://mq/f/f"
    assert link_to(URLS, {"queue": "q", "flow_id": ""}) == "https://mq/q/q"
    assert link_to(URLS, {}) == ""
    assert link_to("https://mq", {}) == "https://mq"
    assert link_to("", {"queue": "q"}) == ""


def test_what_is_no_url_is_refused(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for text in NO_URLS:
        with subtests.test(text=text):
            with pytest.raises(ValueError):  # noqa: PT011  it has no text
                check_templates(text)
            dashboard(monkeypatch, text)
            with pytest.raises(
                ConfigurationError, match="extra dashboard_url must be http or https URLs with"
            ):
                GlideMQHook().get_settings()


def dashboard(monkeypatch: pytest.MonkeyPatch, urls: str) -> None:
    known = json.loads(os.environ["AIRFLOW_CONN_GLIDEMQ_DEFAULT"])
    known["extra"]["dashboard_url"] = urls
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(known))


def link(operator: Any) -> str:
    return GlideMQLink().get_link(operator, ti_key=None)  # type: ignore[arg-type]


def test_a_flow_has_a_link_when_it_has_deferred_and_when_it_has_ended(
    valkey: Valkey, worker: Worker, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard(monkeypatch, URLS)
    flow_id = flow_id_for("d", "t", "r1")
    made = GlideMQFlowOperator(task_id="t", flow=chain("wait"), defer_after=0)
    assert link(made) == "", "nothing is known yet"
    with pytest.raises(TaskDeferred):
        made.execute(context())
    assert link(made) == f"https://mq/f/{flow_id}"
    valkey.gate.set()
    with valkey.producer() as producer:
        producer.get(flow_id).wait()
    resumed = GlideMQFlowOperator(task_id="t", flow=chain("wait"))
    resumed.execute_complete(context(), {"status": "completed", "flow_id": flow_id})
    assert link(resumed) == f"https://mq/f/{flow_id}"


def test_a_job_has_a_link_to_the_job(
    valkey: Valkey, worker: Worker, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard(monkeypatch, URLS)
    made = GlideMQOperator(task_id="t", queue_name=QUEUE, job="echo", data=1)
    assert made.execute(context()) == 1
    assert link(made) == f"https://mq/q/{QUEUE}/j/{flow_id_for('d', 't', 'r1')}~echo"


def test_sensors_have_links_too(queue: Queue, context: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard(monkeypatch, URLS)
    for made, expected in (
        (GlideMQFlowSensor(task_id="s", flow_id="f"), "https://mq/f/f"),
        (GlideMQJobSensor(task_id="s", queue_name="q", job_id="7"), "https://mq/q/q/j/7"),
        (GlideMQQueueSensor(task_id="s", queue_name="q", at_least=1), "https://mq/q/q"),
    ):
        with pytest.raises(TaskDeferred):
            made.execute(context())
        assert link(made) == expected


def test_without_a_dashboard_there_is_no_link(valkey: Valkey, context: Contexts) -> None:
    made = GlideMQFlowSensor(task_id="s", flow_id="f")
    with pytest.raises(TaskDeferred):
        made.execute(context())
    assert link(made) == ""


def test_a_connection_that_is_gone_is_no_error_of_the_link(context: Contexts) -> None:
    made = GlideMQFlowSensor(task_id="s", flow_id="f", glidemq_conn_id="nobody")
    made.link_places = {"flow_id": "f"}
    assert link(made) == ""
