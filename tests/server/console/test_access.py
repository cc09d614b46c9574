"""Who may use the console."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from tests.server.console.conftest import WRITES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.testclient import TestClient

TOKEN = "very-secret-token"


def test_without_a_token_only_this_machine_is_answered(open_console: Callable[..., TestClient]) -> None:
    console = open_console()
    assert console.get("/api/about", headers={"host": "localhost:8790"}).status_code == 200
    for host in (
        "evil.example",
        "testserver",
        "localhost.evil.example",
        "[evil",
        "evil.example@localhost",
        "",
    ):
        reply = console.get("/api/about", headers={"host": host})
        assert (reply.status_code, "localhost only" in reply.json()["error"]) == (421, True), host
        assert "--token" in reply.json()["fix"]


def test_a_token_is_needed_for_every_answer(open_console: Callable[..., TestClient]) -> None:
    console = open_console(token=TOKEN)
    assert console.get("/api/about", headers={"host": "console.example"}).status_code == 401
    assert console.get("/", headers={"host": "console.example"}).status_code == 200, "the page asks for it"
    for given, status in ((TOKEN, 200), ("wrong", 401), ("", 401), ("é", 401)):
        headers = {b"authorization": f"Bearer {given}".encode()}
        assert console.get("/api/about", headers=headers).status_code == status


def test_the_cookie_of_a_session_is_enough(open_console: Callable[..., TestClient]) -> None:
    console = open_console(token=TOKEN)
    assert console.post("/api/session", headers=WRITES, json={"token": "wrong"}).status_code == 401
    for body in (b"", b"[]", b"{", b'{"token": 5}'):
        assert console.post("/api/session", headers=WRITES, content=body).status_code == 401
    reply = console.post("/api/session", headers=WRITES, json={"token": TOKEN})
    assert "HttpOnly; SameSite=Strict" in reply.headers["set-cookie"]
    assert console.get("/api/about").status_code == 200


@pytest.mark.parametrize("token", ["a b;c, d", "+/==", "\u043f\u0430\u0440\u043e\u043b\u044c", '"quoted"'])
def test_a_token_may_have_any_characters(open_console: Callable[..., TestClient], token: str) -> None:
    console = open_console(token=token)
    reply = console.post("/api/session", headers=WRITES, json={"token": token})
    assert token not in reply.headers["set-cookie"]
    assert console.get("/api/about").status_code == 200
    other = open_console(token=token)
    other.get("/", params={"token": token})
    assert other.get("/api/about").status_code == 200


def test_consoles_on_other_ports_leave_the_session_alone(open_console: Callable[..., TestClient]) -> None:
    every, kept = {token: open_console(token=token) for token in (TOKEN, "another")}, dict[str, str]()
    for token, console in every.items():
        reply = console.post("/api/session", headers=WRITES, json={"token": token})
        name, _, value = reply.headers["set-cookie"].partition(";")[0].partition("=")
        kept[name] = value  # a browser sends the cookies of a host to all of its ports
    cookies = "; ".join(f"{name}={value}" for name, value in kept.items())
    for console in every.values():
        console.cookies.clear()
        assert console.get("/api/about", headers={"cookie": cookies}).status_code == 200


def test_a_token_in_the_address_opens_the_page_and_leaves_the_address(
    open_console: Callable[..., TestClient],
) -> None:
    console = open_console(token=TOKEN)
    reply = console.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (reply.status_code, reply.headers["location"]) == (303, "./")
    assert console.get("/api/about").status_code == 200
    other = open_console(token=TOKEN)
    assert "set-cookie" not in other.get("/?token=wrong", follow_redirects=False).headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (WRITES | {"origin": "https://evil.example"}, 403),
        (WRITES | {"origin": "null"}, 403),
        (WRITES | {"origin": "http://["}, 403),
        (WRITES | {"origin": "http://localhost"}, 200),
        (WRITES, 200),
    ],
)
def test_other_sites_cannot_change_anything(
    open_console: Callable[..., TestClient], headers: dict[str, str], status: int
) -> None:
    assert open_console().post("/api/queues/etl/pause", headers=headers).status_code == status


def test_every_answer_has_the_headers_that_keep_a_page_safe(open_console: Callable[..., TestClient]) -> None:
    console = open_console(token=TOKEN)
    for path in ("/", "/api/about", "/static/none.js"):
        headers = console.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_it_can_be_mounted_under_any_path(url: str) -> None:
    from starlette.applications import Starlette  # noqa: PLC0415  optional
    from starlette.routing import Mount  # noqa: PLC0415
    from starlette.testclient import TestClient  # noqa: PLC0415

    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    console = create_app(url, token=TOKEN)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await console.aclose()

    app = Starlette(routes=[Mount("/tools/glidemq", console)], lifespan=lifespan)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/tools/glidemq/api/about").status_code == 401
        reply = client.post("/tools/glidemq/api/session", headers=WRITES, json={"token": TOKEN})
        assert "Path=/tools/glidemq" in reply.headers["set-cookie"]
        assert client.get("/tools/glidemq/api/about").json()["prefix"] == "glide"
        assert client.get("/tools/glidemq/api/flows/a%2Fb").status_code == 404
        assert client.get("/tools/glidemq/").status_code == 200


def test_a_guard_decides_who_sees_and_changes_what(
    open_console: Callable[..., TestClient], flows: FlowProducer
) -> None:
    from glidemq_orchestrate.console import Guard, NotSignedIn, Request  # noqa: PLC0415  optional

    class OfTeam(Guard):
        is_needed = True

        async def sees_flow(self, request: Request, labels: Mapping[str, str]) -> bool:
            if "x-user" not in request.headers:
                raise NotSignedIn
            return not labels or labels.get("team") == "sales"

        async def changes_flow(self, request: Request, labels: Mapping[str, str]) -> bool:
            return request.headers["x-user"] == "boss" and await self.sees_flow(request, labels)

        async def sees_queues(self, request: Request) -> bool:
            return request.headers.get("x-user") == "boss"

        async def changes_queues(self, request: Request) -> bool:
            return False

    for team in ("sales", "stock"):
        spec = FlowSpec("n", [FlowNode("a", queue="etl")], labels={"team": team})
        flows.submit(spec, flow_id=team)
    console = open_console(guard=OfTeam())

    def ask(user: str, path: str, method: str = "GET") -> int:
        headers = WRITES | ({"x-user": user} if user else {})
        status: int = console.request(method, f"/api/{path}", headers=headers).status_code
        return status

    assert ask("", "flows") == ask("", "flows/sales") == ask("", "about") == 401
    listed = console.get("/api/flows", headers={"x-user": "me"}).json()["flows"]
    assert [flow["id"] for flow in listed] == ["sales"]
    assert (ask("me", "flows/sales"), ask("me", "flows/stock"), ask("me", "flows/stock/nodes/a")) == (
        200,
        403,
        403,
    )
    assert (ask("me", "flows/sales/cancel", "POST"), ask("boss", "flows/stock/cancel", "POST")) == (403, 403)
    assert ask("boss", "flows/sales/cancel", "POST") == 200
    assert (ask("me", "queues"), ask("boss", "queues"), ask("boss", "queues/etl/pause", "POST")) == (
        403,
        200,
        403,
    )
