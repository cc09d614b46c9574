"""What the service answers when something is wrong is for people, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from tests.server.console.conftest import SECRET, WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from starlette.testclient import TestClient

BAD = {
    "flows?limit=9999": "limit must be at most 200, got 9999",
    "flows?limit=0": "limit must be at least 1, got 0",
    "flows?limit=many": "limit must be a whole number, got many",
    "flows?since=yesterday": "since must be a time such as 2026-01-31T12:00:00Z, got yesterday",
    "flows/f/nodes?limit=9999&offset=-1": (
        "offset must be at least 0, got -1; limit must be at most 500, got 9999"
    ),
    "flows/f/plan?action=stop": "action must be 'retry', 'restart' or 'cancel', got stop",
    "flows/f/plan": "action is missing",
    f"flows?limit=password={SECRET}": "limit must be a whole number, got password=***",
    f"flows?limit={'x' * 300}": f"limit must be a whole number, got {'x' * 80}…",
}


def test_a_bad_value_is_answered_with_what_it_must_be(
    console: TestClient, flows: FlowProducer, subtests: pytest.Subtests
) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id="f")
    for path, text in BAD.items():
        with subtests.test(path[:60]):
            reply = console.get(f"/api/{path}")
            assert (reply.status_code, reply.json()) == (422, {"error": text, "fix": ""})


def test_a_bad_body_is_answered_with_what_it_must_be(
    console: TestClient, flows: FlowProducer, subtests: pytest.Subtests
) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a", queue="etl")]), flow_id="f")
    bodies = {
        "{": "the body is not valid JSON",
        '{"group": 7}': "group must be a text, got 7",
        "{}": "group is missing",
        "[]": "the body must be a JSON object",
        '{"group": "%s"}' % ("x" * 20_000): f"group must have at most 10000 characters, got {'x' * 80}…",
    }
    for body, text in bodies.items():
        with subtests.test(body[:40]):
            headers = {**WRITES, "content-type": "application/json"}
            reply = console.post("/api/flows/f/retry-group", headers=headers, content=body)
            assert (reply.status_code, reply.json()) == (422, {"error": text, "fix": ""})


def test_what_nobody_answers_says_so(console: TestClient, open_console: Callable[..., TestClient]) -> None:
    assert console.get("/api/nothing").json() == {"error": "there is nothing at this address", "fix": ""}
    reply = open_console(read_only=True).post("/api/flows/f/retry", headers=WRITES)
    assert reply.status_code in (404, 405)
    assert "read-only" in reply.json()["fix"]


def test_the_description_of_the_service_has_the_form_of_its_errors(console: TestClient) -> None:
    described = console.get("/api/openapi.json").json()
    answer = described["paths"]["/api/flows"]["get"]["responses"]["422"]
    assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Refusal")
    assert "HTTPValidationError" not in described["components"]["schemas"]
