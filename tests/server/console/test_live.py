"""The console as it is served: changes while a flow runs, many who look, and a server that goes away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from glidemq_orchestrate import ArrayNode, Context, EmbeddedServer, FlowNode, FlowProducer, FlowSpec

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from tests.conftest import Eventually, RunWorker
    from tests.server.console.conftest import Served


class Ui:
    """``glidemq ui`` in a process of its own."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "glidemq_orchestrate", "ui", "--url", url, "--port", "0", *options]
        env = os.environ | {"NO_COLOR": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.base = self.address.partition("?")[0].rstrip("/")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.base}{path}", timeout=30, **options)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def start_ui() -> Iterator[Callable[..., Ui]]:
    started: list[Ui] = []

    def start(url: str, *options: str) -> Ui:
        started.append(Ui(url, *options))
        return started[-1]

    yield start
    for ui in started:
        if ui.process.poll() is None:
            ui.stop()


def changes(base: str, flow_id: str) -> Iterator[tuple[str, Any]]:
    """Kind and data of each event, until the stream ends."""
    kind = ""
    with httpx.stream("GET", f"{base}/api/flows/{flow_id}/live", timeout=60) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def fan_out(count: int) -> FlowSpec:
    parts = [f"part[{at}]" for at in range(count)]
    nodes = [FlowNode("a"), *(FlowNode(name, job="part", after=["a"]) for name in parts)]
    return FlowSpec("n", [*nodes, FlowNode("end", after=parts)], queue="etl")


def test_changes_arrive_until_the_flow_has_ended(
    flows: FlowProducer, run_worker: RunWorker, url: str, serve: Callable[..., Served]
) -> None:
    go_on = threading.Event()

    def part(ctx: Context) -> None:
        if ctx.node == "part[7]":
            assert go_on.wait(60)

    flows.submit(fan_out(8), flow_id="f")
    ui = serve(url)
    seen: list[tuple[str, Any]] = []
    for kind, data in changes(ui.base, "f"):
        if not seen:
            run_worker(["etl"], {"a": lambda _: 1, "part": part, "end": lambda _: 1})
        seen.append((kind, data))
        if data["states"].get("1") == {"completed": 7, "active": 1}:
            go_on.set()
    assert go_on.is_set(), "what runs is seen while it runs"
    kind, last = seen[-1]
    assert (kind, last["flow"]["state"], last["flow"]["completed"]) == ("ended", "completed", 10)
    found = ui.get("/api/flows/f").json()
    assert [group["states"] for group in found["groups"]] == [{"completed": n} for n in (1, 8, 1)]


def test_the_elements_of_an_array_are_counted_while_it_runs(
    flows: FlowProducer, run_worker: RunWorker, url: str, serve: Callable[..., Served]
) -> None:
    go_on = threading.Event()

    def score(ctx: Context) -> int:
        if ctx.data == 900:
            assert go_on.wait(60)
        if ctx.data == 950:
            raise ValueError("no model")
        return 1

    array = ArrayNode("score", over=range(1_000), queue="etl", max_failed=5)
    flows.submit(FlowSpec("n", [array, FlowNode("end", queue="etl", after=["score"])]), flow_id="f")
    ui = serve(url)
    counts: list[dict[str, int]] = []
    for kind, data in changes(ui.base, "f"):
        if kind == "change" and not counts and not go_on.is_set():
            run_worker(["etl"], {"score": score, "end": lambda _: 1})
        counts += data["arrays"].values()
        if any(0 < one["completed"] < 1_000 for one in counts):
            go_on.set()
    assert go_on.is_set(), "they are counted while it runs"
    assert counts[-1] == {"elements": 1_000, "completed": 999, "failed": 1, "skipped": 0, "running": 0}


def test_what_an_array_counted_before_it_failed_is_told(
    flows: FlowProducer, run_worker: RunWorker, url: str, serve: Callable[..., Served]
) -> None:
    def score(ctx: Context) -> int:
        time.sleep(0.05)
        if ctx.data >= 50:
            raise ValueError("no model")
        return 1

    array = ArrayNode("score", over=range(100), queue="etl", max_failed=3)
    flows.submit(FlowSpec("n", [array, FlowNode("other", queue="nobody")]), flow_id="f")
    ui = serve(url)
    counts: list[dict[str, int]] = []
    stream = changes(ui.base, "f")
    for _, data in stream:
        if not counts:
            run_worker(["etl"], {"score": score}, concurrency=1)
        counts += data["arrays"].values()
        if data["flow"]["failed"]:
            break
    assert counts[-1]["failed"] >= 4
    flows.get("f").cancel("seen")
    assert [kind for kind, _ in stream][-1] == "ended"


async def test_a_stream_without_changes_says_that_it_is_there(
    flows: FlowProducer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glidemq_orchestrate.console import create_app, live  # noqa: PLC0415  optional

    flows.submit(fan_out(3), flow_id="f")
    monkeypatch.setattr(live, "PULSE_SECONDS", 0.05)
    console, seen = create_app(url), list[bytes]()
    three = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not seen:
            return {"type": "http.request", "body": b"", "more_body": False}
        await three.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            seen.append(message["body"])
        if len(seen) == 3:
            three.set()

    path = "/api/flows/f/live"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    await asyncio.wait_for(console(scope, receive, send), 20)
    await console.aclose()
    comments = [one for one in seen if one.startswith(b":")]
    assert len(comments) >= 2, seen


def test_many_who_look_cost_what_one_costs(
    flows: FlowProducer, redis_client: Any, url: str, serve: Callable[..., Served], eventually: Eventually
) -> None:
    flows.submit(fan_out(50), flow_id="f")
    ui = serve(url)
    ui.get("/api/flows/f").raise_for_status()

    def watch() -> None:
        for _ in changes(ui.base, "f"):
            pass

    def rate(lookers: int) -> float:
        threads = [threading.Thread(target=watch, daemon=True) for _ in range(lookers)]
        for thread in threads:
            thread.start()
        eventually(lambda: _clients(redis_client) >= 1)
        return min(_second(redis_client) for _ in range(5))  # the others begin to look

    one, many = rate(1), rate(20)
    assert many <= one + 4, (one, many)
    assert many < 15, "some calls a second"
    flows.get("f").cancel("seen")


def test_many_who_read_a_flow_cost_what_one_costs(
    flows: FlowProducer, redis_client: Any, url: str, serve: Callable[..., Served]
) -> None:
    flows.submit(fan_out(2_000), flow_id="f")
    ui = serve(url)
    ui.get("/api/flows/f").raise_for_status()
    for what in ("/timeline", "/failures"):

        def cost(lookers: int, path: str = f"/api/flows/f{what}") -> int:
            time.sleep(1.5)  # what was read is old
            before = _calls(redis_client)
            with ThreadPoolExecutor(lookers) as pool:
                for reply in pool.map(ui.get, [path] * lookers):
                    assert reply.status_code == 200
            return _calls(redis_client) - before

        one = cost(1)
        assert cost(20) <= 2 * one + 20 * 3, what  # each reads the record


def _second(client: Any) -> int:
    """The calls of a second."""
    before = _calls(client)
    threading.Event().wait(1)
    return _calls(client) - before


def _calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name in ("cmdstat_fcall", "cmdstat_xread"))


def _clients(client: Any) -> int:
    return int(client.info("clients")["blocked_clients"])


def test_it_goes_on_when_the_server_is_back(tmp_path: Any, start_ui: Callable[..., Ui]) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server, FlowProducer(server.url) as flows:
        flows.submit(fan_out(3), flow_id="f")
        ui, port = start_ui(server.url), int(server.url.rpartition(":")[2])
        assert ui.get("/api/flows/f").status_code == 200
    reply = ui.get("/api/flows/f")
    assert (reply.status_code, bool(reply.json()["error"])) == (503, True)
    with EmbeddedServer(data_dir=tmp_path, port=port):
        for _ in range(20):
            reply = ui.get("/api/flows/f")
            if reply.status_code == 200:
                break
            threading.Event().wait(0.5)
        assert reply.json()["flow"]["total"] == 5


def test_who_looks_at_a_flow_is_told_that_the_server_is_away_and_back(
    tmp_path: Any, serve: Callable[..., Served]
) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server, FlowProducer(server.url) as flows:
        flows.submit(fan_out(3), flow_id="f")
        ui, port = serve(server.url), int(server.url.rpartition(":")[2])
        told = changes(ui.base, "f")
        assert next(told)[0] == "change"
    while (kind := next(told)[0]) == "change":
        pass
    assert kind == "away"
    with EmbeddedServer(data_dir=tmp_path, port=port):
        kind, data = next(told)
        assert (kind, data["flow"]["state"]) == ("change", "running")


def test_who_looks_at_a_flow_is_told_when_it_is_gone(
    flows: FlowProducer, redis_client: Any, url: str, serve: Callable[..., Served]
) -> None:
    flows.submit(fan_out(3), flow_id="f")
    ui = serve(url)
    for kind, _ in changes(ui.base, "f"):
        if kind == "change":
            redis_client.delete(*redis_client.keys("glide:*"))
    assert kind == "reload"
    assert ui.get("/api/flows/f").status_code == 404


@pytest.mark.long
def test_a_silent_server_is_said_in_time(tmp_path: Any, serve: Callable[..., Served]) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server, FlowProducer(server.url) as flows:
        flows.submit(fan_out(3), flow_id="f")
        ui = serve(server.url)
        assert ui.get("/api/flows/f").status_code == 200
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            reply = ui.get("/api/flows/f")
            assert (reply.status_code, "has not answered" in reply.json()["error"]) == (503, True)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert ui.get("/api/flows/f").status_code == 200


def test_what_is_large_is_compressed_and_changes_are_not(
    flows: FlowProducer, url: str, serve: Callable[..., Served]
) -> None:
    flows.submit(fan_out(3), flow_id="f")
    ui = serve(url)
    assert ui.get("/static/app.js").headers["content-encoding"] == "gzip"
    with httpx.stream("GET", f"{ui.base}/api/flows/f/live", timeout=30) as reply:
        assert "content-encoding" not in reply.headers


def test_beyond_this_machine_it_needs_a_token(url: str, start_ui: Callable[..., Ui]) -> None:
    command = [sys.executable, "-m", "glidemq_orchestrate", "ui", "--url", url, "--host", "0.0.0.0"]  # noqa: S104
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, "Fix: --token random" in refused.stderr) == (2, True), refused.stderr
    ui = start_ui(url, "--host", "0.0.0.0", "--token", "random")  # noqa: S104
    token = re.search(r"\?token=([\w-]{32})$", ui.address)
    assert token, ui.address
    assert ui.get("/api/about").status_code == 401
    headers = {"authorization": f"Bearer {token[1]}"}
    assert ui.get("/api/about", headers=headers).status_code == 200
    assert ui.stop() in (0, 130)
    with httpx.Client() as browser:
        browser.get(start_ui(url, "--token", "a+b/c==").address)  # such as openssl rand -base64 makes
        assert browser.cookies
