"""The console as a plugin of a real Airflow API server, behind its login and permissions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec

if TYPE_CHECKING:
    from tests.providers.airflow.builders import Valkey

HEADERS = {"X-GlideMQ": "1"}
# Prints the answers to requests, each [user, method, path], which it reads as JSON from its input.
PROGRAM = """
import json, sys
from starlette.testclient import TestClient
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb

initdb()
app = create_app(apps="core")
found = []
with TestClient(app, base_url="http://localhost:8080") as client:
    for user, method, path in json.load(sys.stdin):
        client.cookies.clear()
        if user == "forged":
            client.cookies.set("_token", "x.y.z")
        elif user:
            made = SimpleAuthManagerUser(username=user, role=user)
            client.cookies.set("_token", get_auth_manager().generate_jwt(made))
        headers = {"X-GlideMQ": "1"} if method == "POST" else {}
        reply = client.request(method, path, headers=headers, follow_redirects=False)
        found.append([reply.status_code, reply.headers.get("location", ""), reply.text])
print("ANSWERS" + json.dumps(found))
"""


def ask(valkey: Valkey, home: Path, *requests: tuple[str, str, str]) -> list[Any]:
    """The answers to these requests: status, location, text."""
    env = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64,
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    _, is_there, answers = done.stdout.rpartition("ANSWERS")
    assert is_there, done.stderr[-3000:]
    found: list[Any] = json.loads(answers)
    return found


@pytest.fixture
def flow(valkey: Valkey) -> str:
    with FlowProducer(valkey.url, prefix=valkey.prefix) as flows:
        labels = {"dag_id": "sales", "run_id": "r1", "task_id": "nightly"}
        flows.submit(FlowSpec("nightly", [FlowNode("a", queue="etl")], labels=labels), flow_id="af/1")
        flows.submit(FlowSpec("other", [FlowNode("a", queue="etl")]), flow_id="plain")
    return "/glidemq/api/flows/af%2F1"


def test_the_console_is_behind_the_login_and_permissions_of_airflow(
    valkey: Valkey, flow: str, tmp_path: Path
) -> None:
    asked = (
        ("", "GET", flow),
        ("forged", "GET", flow),
        ("", "GET", "/glidemq/api/about"),
        ("viewer", "GET", flow),
        ("viewer", "POST", f"{flow}/cancel"),
        ("viewer", "POST", "/glidemq/api/queues/etl/pause"),
        ("viewer", "GET", "/glidemq/of?dag_id=sales&run_id=r1&task_id=nightly&map_index=-1"),
        ("viewer", "GET", "/glidemq/"),
        ("user", "POST", f"{flow}/cancel"),
        ("admin", "GET", "/glidemq/api/queues"),
        ("admin", "GET", "/glidemq/api/flows"),
    )
    found = ask(valkey, tmp_path, *asked)
    statuses = [status for status, _, _ in found]
    assert statuses == [401, 401, 401, 200, 403, 403, 303, 200, 200, 200, 200], found
    assert found[6][1] == "./#/flows/af%2F1"
    assert json.loads(found[8][2])["state"] in ("running", "cancelled")
    assert {one["id"] for one in json.loads(found[10][2])["flows"]} == {"af/1", "plain"}


def test_airflow_lists_its_tabs_and_its_page() -> None:
    from airflow_provider_glidemq.plugins.glidemq import GlideMQPlugin  # noqa: PLC0415  it reads the configuration

    views = {view["destination"]: view for view in GlideMQPlugin.external_views}
    assert set(views) == {"nav", "dag_run", "task_instance"}
    assert views["nav"]["href"] == "/glidemq/"
    assert views["task_instance"]["href"].endswith(
        "/of?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
    )
    assert [app["url_prefix"] for app in GlideMQPlugin.fastapi_apps] == ["/glidemq"]


def test_a_connection_that_cannot_be_used_is_said(tmp_path: Path, valkey: Valkey, monkeypatch: Any) -> None:
    monkeypatch.setenv("AIRFLOW__GLIDEMQ__CONSOLE_CONN_ID", "no_such_connection")
    ((status, _, text),) = ask(valkey, tmp_path, ("admin", "GET", "/glidemq/api/about"))
    assert (status, "no_such_connection" in json.loads(text)["error"]) == (503, True), text
