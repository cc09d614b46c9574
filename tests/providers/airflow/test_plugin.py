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


def test_the_servers_of_listed_connections_are_shown_too(
    valkey: Valkey, flow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"conn_type": "glidemq", "host": valkey.url, "extra": {"prefix": f"{valkey.prefix}away"}}
    for name in ("GLIDEMQ_AWAY", "GLIDEMQ_SECRET"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(away))
    monkeypatch.setenv("AIRFLOW__GLIDEMQ__CONSOLE_CONN_IDS", "glidemq_away, glidemq_gone,")
    with FlowProducer(valkey.url, prefix=f"{valkey.prefix}away") as flows:
        labels = {"dag_id": "reports", "run_id": "r/1", "task_id": "load"}
        flows.submit(FlowSpec("load", [FlowNode("a", queue="etl")], labels=labels), flow_id="away/1")
    away_flow, of = "/glidemq/on/glidemq_away/api/flows/away%2F1", "&task_id=load&map_index=-1"
    asked = (
        ("", "GET", away_flow),
        ("viewer", "GET", away_flow),
        ("viewer", "POST", f"{away_flow}/cancel"),
        ("viewer", "GET", flow.replace("/glidemq", "/glidemq/on/glidemq_away")),
        ("viewer", "GET", "/glidemq/on/glidemq_away"),
        ("viewer", "GET", "/glidemq/on/glidemq_away/"),
        ("viewer", "GET", f"/glidemq/of?dag_id=reports&run_id=r/1{of}"),
        ("viewer", "GET", "/glidemq/of?dag_id=sales&run_id=r1&task_id=nightly"),
        ("viewer", "GET", f"/glidemq/of?dag_id=nothing&run_id=r1{of}"),
        ("", "GET", f"/glidemq/of?dag_id=reports&run_id=r/1{of}"),
        ("admin", "GET", "/glidemq/on/glidemq_secret/api/about"),
        ("admin", "GET", "/glidemq/on/glidemq_gone/api/about"),
        ("user", "POST", f"{away_flow}/cancel"),
    )
    found = ask(valkey, tmp_path, *asked)
    assert [status for status, _, _ in found] == [
        401, 200, 403, 404, 307, 200, 303, 303, 303, 303, 404, 503, 200,
    ], found  # fmt: skip
    assert [found[at][1] for at in (4, 6, 7)] == [
        "glidemq_away/",
        "./on/glidemq_away/#/flows/away%2F1",
        "./#/flows/af%2F1",
    ]
    assert found[8][1].startswith("./#/flows?search=dag_id%3Dnothing")
    assert found[9][1].startswith("./#/flows?search="), "nobody learns what there is"
    assert json.loads(found[10][2]) == {
        "error": "the connection glidemq_secret is not shown here",
        "fix": "add it to console_conn_ids in section [glidemq] of Airflow's configuration",
    }
    assert "glidemq_gone" in json.loads(found[11][2])["error"]


def test_each_listed_connection_has_a_page_in_the_menu(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_glidemq.plugins import glidemq  # noqa: PLC0415  it reads the configuration

    monkeypatch.setenv("AIRFLOW__GLIDEMQ__CONSOLE_CONN_IDS", "glidemq_default,a/b")
    pages = {one["name"]: one for one in glidemq._views() if one["destination"] == "nav"}
    assert [page["href"] for page in pages.values()] == ["/glidemq/on/a%2Fb/", "/glidemq/"]
    assert pages["glide-mq (a/b)"]["url_route"] == "glidemq-nav-a-b"


def test_a_connection_that_cannot_be_used_is_said(tmp_path: Path, valkey: Valkey, monkeypatch: Any) -> None:
    monkeypatch.setenv("AIRFLOW__GLIDEMQ__CONSOLE_CONN_ID", "no_such_connection")
    ((status, _, text),) = ask(valkey, tmp_path, ("admin", "GET", "/glidemq/api/about"))
    assert (status, "no_such_connection" in json.loads(text)["error"]) == (503, True), text
