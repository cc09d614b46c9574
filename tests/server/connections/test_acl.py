"""A user who may touch ``glide:*`` alone, with the rule in the documentation, can do everything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from glidemq_orchestrate import (
    Broadcast,
    Client,
    ConnectionSettings,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    NewJob,
    Ordering,
    Queue,
    RateLimit,
    Schedule,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.clients.servers import Libraries
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.portable import changes
from glidemq_orchestrate.flows.portable.advance import wait
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server import findings
from tests.conftest import Eventually, RunWorker
from tests.server.connections.guarded import KINDS, Guarded, running_guarded

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "connections.md"
LONG = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_guarded(request.param, tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture
def url(guarded: Guarded) -> str:
    guarded.admin.flushall()
    guarded.set_user("worker", findings.rule())
    guarded.admin.acl_log_reset()
    return guarded.url


def test_the_page_on_connections_has_the_rules_that_are_tried_here() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for rule in (findings.rule(), findings.cluster_rule(), findings.loader_rule()):
        assert rule in " ".join(text.split())


def test_queues_workers_schedulers_and_broadcasts_are_allowed(
    guarded: Guarded, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    with Queue("etl", url) as queue, EventReader("etl", url, position="0-0") as reader:
        options = JobOptions(priority=1, ordering=Ordering("a"), delay=SECOND)
        queue.add("late", options=options)
        queue.add("ttl", options=JobOptions(ttl=HOUR, attempts=2))
        ids = queue.add_many([NewJob("work", n) for n in range(20)])
        queue.pause()
        queue.resume()
        queue.scan_jobs()
        for state in set(JobState) - {JobState.SKIPPED, JobState.UNKNOWN}:
            queue.get_jobs(state)
        queue.add_log(str(ids[0]), "said")
        assert queue.logs(str(ids[0])).lines
        queue.change_priority(str(ids[1]), 3)
        queue.revoke(str(ids[2]))
        queue.remove(str(ids[3]))
        queue.set_global_concurrency(5)

        def work(ctx: Any) -> Any:
            ctx.progress(1)
            ctx.log("here")
            ctx.output({"line": "x"})
            if ctx.name == "ttl" and ctx.attempt == 1:
                raise ValueError
            return ctx.data

        run_worker(
            ["etl"],
            dict.fromkeys(("work", "late", "ttl"), work),
            url=url,
            rate_limit=RateLimit(1000, SECOND),
            lease=SECOND,
        )
        with Schedules("etl", url) as schedulers:
            schedulers.upsert("often", Schedule(every=SECOND, limit=2), JobTemplate("work"))
            assert schedulers.list()
            eventually(lambda: queue.counts()[JobState.COMPLETED] >= 22, timeout=20)
        assert queue.workers()
        queue.retry_failed()
        queue.clean(JobState.COMPLETED, grace=timedelta(0), limit=5)
        queue.metrics(JobState.COMPLETED)
        queue.groups()
        queue.drain(delayed=True)
        assert list(reader.read())
    with Broadcast("news", url) as news:
        news.publish("order.paid", {"n": 1})
    assert Client(url).queues() == ["etl", "news"]
    with Queue("news", url) as queue:
        queue.obliterate(force=True)
    assert guarded.denied() == []


def test_flows_and_supervision_are_allowed(guarded: Guarded, url: str, run_worker: RunWorker) -> None:
    def work(ctx: Any) -> Any:
        if ctx.node == "grow":
            ctx.flow.add_nodes([FlowNode("added", queue="etl", job="work")])
        if ctx.node == "broken" and not ctx.data:
            raise ValueError("boom")
        return dict(ctx.inputs)

    with FlowProducer(url) as flows:
        nodes = [
            FlowNode("grow", queue="etl", job="work"),
            FlowNode("b", queue="etl2", job="work", after=["grow"]),
        ]
        fine = flows.submit(FlowSpec("n", nodes, retention=HOUR), flow_id="fine")
        broken = flows.submit(FlowSpec("n", [FlowNode("broken", queue="etl", job="work")]), flow_id="broken")
        waiting = flows.submit(FlowSpec("n", [FlowNode("x", queue="nobody", job="work")]), flow_id="waiting")
        run_worker(["etl", "etl2"], {"work": work}, url=url, lease=SECOND)
        assert set(fine.result(timeout=LONG)) == {"grow", "b", "added"}
        assert broken.wait(timeout=LONG).status.state is FlowState.FAILED
        broken.retry_failed()
        assert broken.wait(timeout=LONG).status.state is FlowState.FAILED
        waiting.cancel("enough")
        assert waiting.wait(timeout=LONG).status.state is FlowState.CANCELLED
        assert {flow.id for flow in flows.list()} == {"fine", "broken", "waiting"}
        assert fine.nodes()
    assert guarded.denied() == []


def test_flows_by_the_portable_path_are_allowed(guarded: Guarded, url: str, run_worker: RunWorker) -> None:
    driver, clock = SyncDriver(ConnectionSettings(url)), SystemClock()
    nodes = [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl2", job="work", after=["a"])]
    ref = driver.run(
        submit_flow(
            "glide", check_flow(FlowSpec("n", nodes)), "f", "attach", clock, reach=Reach(has_functions=False)
        )
    )
    run_worker(["etl", "etl2"], {"work": lambda ctx: 1}, url=url)
    assert driver.run(wait(ref, 20_000, clock)).state is FlowState.COMPLETED
    assert driver.run(changes.retry_failed(ref, clock)) is FlowState.COMPLETED
    driver.close()
    assert guarded.denied() == []


def test_other_keys_and_the_libraries_are_out_of_reach(guarded: Guarded, url: str) -> None:
    with Queue("etl", url) as queue:
        queue.add("work")
    guarded.admin.set("other", "1")
    with redis.Redis.from_url(url.replace("valkey", "redis"), driver_info=None) as client:
        for words in (
            ("GET", "other"),
            ("FCALL", "glidemq_promote", 2, "other", "x"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
    with (
        Queue("etl", url, prefix="other") as queue,
        pytest.raises(ConfigurationError, match="lacks a permission"),
    ):
        queue.add("work")
    with Libraries(url) as libraries, pytest.raises(ConfigurationError, match="lacks a permission"):
        libraries.load(replace=True)


def test_a_user_who_loads_the_libraries_needs_only_the_other_rule(guarded: Guarded, url: str) -> None:
    guarded.admin.function_flush()
    with (
        Queue("etl", url) as queue,
        pytest.raises(ConfigurationError, match=r"no library glidemq.*glidemq library load"),
    ):
        queue.add("work")
    for line, code in (("library status", 0), ("doctor", 1)):
        shown = CliRunner().invoke(app, line, env={"GLIDEMQ_URL": url})
        assert (shown.exit_code, "not loaded" in shown.output) == (code, True)
    guarded.set_user("loader", findings.loader_rule())
    guarded.admin.acl_log_reset()
    with Libraries(url.replace("worker", "loader")) as libraries:
        (found,) = libraries.load().values()
    assert all(status.ours for status in found)
    assert guarded.denied() == []
    with Queue("etl", url) as queue:
        queue.add("work")


def test_a_wrong_password_is_reported_without_it(guarded: Guarded, url: str) -> None:
    wrong = ConnectionSettings(url, password="hunter3")
    with (
        Queue("etl", wrong) as queue,
        pytest.raises(ConfigurationError, match="refused the user or password") as raised,
    ):
        queue.add("work")
    assert "hunter" not in str(raised.value)
