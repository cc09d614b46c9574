"""A worker, a producer and an observer, each with the rights of its role in SECURITY.md and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from glidemq_orchestrate import (
    Broadcast,
    Client,
    Deduplication,
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
    Schedule,
)
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.exchange import Request, exchange
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.clients.servers import Libraries
from glidemq_orchestrate.errors import ConfigurationError, WaitTimeout
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.findings import COMMANDS, TO_OBSERVE, WITHOUT, patterns, role_rule
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.conftest import Eventually, RunWorker
from tests.server.connections.guarded import KINDS, SECRET, Guarded, running_guarded

SECURITY = Path(__file__).parents[3] / "SECURITY.md"
SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=30)
QUEUES = ("etl", "odd*?[a]\\q")


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_guarded(request.param, tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture(params=[(), QUEUES], ids=["all queues", "some queues"])
def roles(guarded: Guarded, request: pytest.FixtureRequest) -> Guarded:
    """Users named as their roles, for all queues or for two."""
    guarded.admin.flushall()
    for role in ("worker", "producer", "observer"):
        guarded.set_user(role, role_rule(role, queues=request.param))
    guarded.admin.acl_log_reset()
    return guarded


@pytest.fixture
def few(guarded: Guarded) -> Guarded:
    guarded.admin.flushall()
    for role in ("worker", "producer", "observer"):
        guarded.set_user(role, role_rule(role, queues=["etl"]))
    guarded.admin.acl_log_reset()
    return guarded


def refused(ask: Callable[[], Any]) -> None:
    with pytest.raises((ConfigurationError, redis.exceptions.NoPermissionError), match=r"permission"):
        ask()


def work(ctx: Any) -> Any:
    ctx.progress(1)
    ctx.log("here")
    ctx.output({"line": "x"})
    ctx.write_message("x")
    if ctx.name == "bad":
        raise ValueError
    if ctx.node == "grow":
        ctx.flow.add_nodes([FlowNode("added", queue="etl", job="work")])
    return ctx.data


def test_a_producer_and_a_worker_need_no_more(
    roles: Guarded, run_worker: RunWorker, eventually: Eventually
) -> None:
    url, odd = roles.url_of("producer"), QUEUES[1]
    run_worker(["etl", odd], {"work": work, "bad": work}, url=roles.url, lease=SECOND, concurrency=4)
    with Queue("etl", url) as queue, FlowProducer(url) as flows, Schedules("etl", url) as schedulers:
        assert queue.add_and_wait("work", 1, timeout=LONG) == 1
        queue.add_many([NewJob("work", n) for n in range(20)])
        queue.add("work", options=JobOptions(priority=1, delay=SECOND, attempts=2))
        queue.add("work", options=JobOptions(ordering=Ordering("a"), ttl=LONG))
        queue.add("work", options=JobOptions(deduplication=Deduplication("x")))
        later = str(queue.add("work", options=JobOptions(delay=LONG, lifo=True)))
        queue.revoke(later)
        queue.remove(later)
        nodes = [
            FlowNode("grow", queue="etl", job="work"),
            FlowNode("b", queue=odd, job="work", after=["grow"]),
        ]
        spec = FlowSpec("n", nodes, labels={"a": "b"}, retention=LONG, deadline=LONG)
        fine = flows.submit(spec, flow_id="fine")
        assert set(fine.result(timeout=LONG)) == {"grow", "b", "added"}
        assert flows.submit(spec, flow_id="fine").status().state is FlowState.COMPLETED
        fine.restart()
        assert fine.wait(timeout=LONG).status.state is FlowState.COMPLETED
        broken = flows.submit(FlowSpec("n", [FlowNode("x", queue="etl", job="bad")]), flow_id="broken")
        assert broken.wait(timeout=LONG).status.state is FlowState.FAILED
        broken.retry_failed()
        assert broken.wait(timeout=LONG).status.state is FlowState.FAILED
        long = FlowNode("x", queue="etl", job="work", options=JobOptions(delay=LONG))
        waiting = flows.submit(FlowSpec("n", [long]), flow_id="waiting")
        waiting.extend([FlowNode("y", queue="etl", job="work", after=["x"])])
        waiting.cancel("enough")
        assert waiting.wait(timeout=LONG).status.state is FlowState.CANCELLED
        schedulers.upsert("often", Schedule(every=SECOND, limit=1), JobTemplate("work"))
        eventually(lambda: queue.counts()[JobState.COMPLETED] >= 25, timeout=30)
    assert roles.denied() == []


def test_an_observer_watches_a_flow_that_is_late(roles: Guarded) -> None:
    with FlowProducer(roles.url_of("producer")) as flows:
        spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")], deadline=timedelta(milliseconds=1))
        flows.submit(spec, flow_id="late")
    with FlowProducer(roles.url_of("observer")) as flows:
        watched = flows.get("late").watch(timeout=timedelta(seconds=1.5))
        with pytest.raises(WaitTimeout):  # nobody ends it, and an observer may not
            list(watched)


def test_an_observer_sees_all_and_changes_nothing(roles: Guarded, run_worker: RunWorker) -> None:
    url = roles.url_of("producer")
    with Queue("etl", url) as queue, FlowProducer(url) as flows, Schedules("etl", url) as schedulers:
        running = run_worker(["etl"], {"work": work}, url=roles.url)
        flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="work")]), flow_id="f").result(
            timeout=LONG
        )
        running.stop()
        job_id = str(queue.add("work", 1))
        schedulers.upsert("often", Schedule(every=LONG), JobTemplate("work"))
    before = _dump(roles.admin)
    roles.admin.acl_log_reset()
    url = roles.url_of("observer")
    with (
        Queue("etl", url) as queue,
        FlowProducer(url) as flows,
        Schedules("etl", url) as schedulers,
        EventReader("etl", url, position="0-0") as events,
        Client(url) as queues,
    ):
        flow = flows.get("f")
        assert flow.status().state is FlowState.COMPLETED
        assert flow.nodes()
        assert flow.results() == {"a": None}
        assert list(flow.watch(timeout=SECOND))
        assert [found.id for found in flows.list()] == ["f"]
        assert queue.get_job(job_id).data == 1
        for state in set(JobState) - {JobState.SKIPPED, JobState.UNKNOWN}:
            queue.get_jobs(state)
        assert queue.counts()[JobState.WAITING] == 1
        assert queue.logs(str(flow.node("a").job_id)).lines
        assert queue.messages(str(flow.node("a").job_id))
        assert queue.accepted_attempts([str(flow.node("a").job_id)])
        for ask in (queue.workers, queue.groups, queue.is_paused, queue.dead_letters, queue.usage_summary):
            ask()
        assert schedulers.list()
        assert events.read()
        assert queues.queues() == ["etl"]
        assert roles.denied() == []

        spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")])
        for change in (
            lambda: queue.add("work"),
            lambda: queue.add_many([NewJob("work")]),
            lambda: queue.revoke(job_id),
            lambda: queue.remove(job_id),
            lambda: queue.update_data(job_id, 2),
            lambda: queue.change_priority(job_id, 2),
            lambda: queue.add_log(job_id, "x"),
            queue.pause,
            queue.drain,
            lambda: flows.submit(spec, flow_id="g"),
            flow.restart,
            lambda: schedulers.remove("often"),
        ):
            refused(change)
    assert _dump(roles.admin) == before


def test_an_observer_may_run_each_command_that_shows_something(roles: Guarded, run_worker: RunWorker) -> None:
    with FlowProducer(roles.url_of("producer")) as flows:
        running = run_worker(["etl"], {"work": work, "bad": work}, url=roles.url)
        nodes = [FlowNode("a", queue="etl", job="bad"), FlowNode("b", queue="etl", job="work", after=["a"])]
        flows.submit(FlowSpec("n", nodes), flow_id="f").wait(timeout=LONG)
        flows.submit(FlowSpec("n", nodes), flow_id="f", on_existing="retry_failed")
        running.stop()
    roles.admin.acl_log_reset()
    for line in (
        "flow show f", "flow list", "flow node f a", "flow failures f", "flow history f", "flow graph f",
        "queue list", "queue show etl", "queue jobs etl", "queue jobs etl --state failed",
        "queue failures etl", "queue statistics etl", "queue tags etl", "job show etl f~a",
        "scheduler list --queue etl", "library status",
    ):  # fmt: skip
        done = CliRunner().invoke(app, line.split(), env={"GLIDEMQ_URL": roles.url_of("observer")})
        assert done.exit_code == 0, f"{line}: {done.output}"
    commands = {str(name).lower() for name in roles.denied()}
    assert commands <= {"function|list", "cluster|nodes"}, "library status does without these"


def test_an_observer_is_enough_for_the_pages_of_the_console(roles: Guarded, run_worker: RunWorker) -> None:
    from starlette.testclient import TestClient  # noqa: PLC0415  optional

    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    url = roles.url_of("producer")
    with FlowProducer(url) as flows, Schedules("etl", url) as schedulers:
        nodes = [FlowNode("a", queue="etl", job="bad"), FlowNode("b", queue="etl", job="work", after=["a"])]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        schedulers.upsert("often", Schedule(every=LONG), JobTemplate("work"))
        running = run_worker(["etl"], {"work": work, "bad": work}, url=roles.url)
        flow.wait(timeout=LONG)
        running.stop()
        flows.submit(FlowSpec("n", nodes), flow_id="open")
    roles.admin.acl_log_reset()
    with TestClient(create_app(roles.url_of("observer")), base_url="http://localhost") as console:
        for path in (
            "about", "flows", "flows?search=f", "flows/f", "flows/open", "flows/f/nodes", "flows/f/failures",
            "flows/f/timeline", "flows/f/nodes/a", "flows/open/nodes/b", "flows/f/plan?action=retry",
            "flows/f/nodes/a/plan?action=rerun", "queues", "queues/etl", "queues/etl/jobs?state=failed",
            "queues/etl/jobs/f~a", "queues/etl/keys", "queues/etl/tags", "queues/etl/tracked",
            "queues/etl/statistics", "workers", "schedules", "queues/etl/schedules/often",
        ):  # fmt: skip
            reply = console.get(f"/api/{path}")
            assert reply.status_code == 200, (path, reply.text)
        assert console.get("/metrics").status_code == 200
        assert roles.denied() == []
        refusal = console.post("/api/queues/etl/pause", headers={"X-GlideMQ": "1"})
        assert "SECURITY.md" in refusal.json()["fix"]


def test_a_worker_reports_the_right_that_it_lacks(few: Guarded) -> None:
    few.set_user("worker", f"{role_rule('worker')} -xreadgroup")
    driver, etl = SyncDriver(ConnectionSettings.resolve(few.url)), QueueKeys("glide", "etl")
    try:
        driver.run(workers.open_queues([etl]))
        with pytest.raises(ConfigurationError, match="permission"):
            driver.run(exchange(etl, "w", Request([], 1, "t"), SystemClock()))
    finally:
        driver.close()


def test_no_command_of_an_observer_writes(guarded: Guarded) -> None:
    writing = set(guarded.admin.execute_command("ACL", "CAT", "write"))
    assert len(writing) > 50
    assert not writing & set(TO_OBSERVE)
    assert set(TO_OBSERVE) <= set(COMMANDS)


def test_a_producer_takes_no_jobs_and_destroys_no_group(few: Guarded, run_worker: RunWorker) -> None:
    url = few.url_of("producer")
    with Queue("etl", url) as queue:
        job_id = str(queue.add("work", 1))
        before = _dump(few.admin)
        stream = "glide:{etl}:stream"
        with redis.Redis(port=few.port, username="producer", password=SECRET, driver_info=None) as client:
            for words in (
                ("XGROUP", "CREATE", stream, "workers", "0"),
                ("XGROUP", "DESTROY", stream, "workers"),
                ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", stream, ">"),
                ("XAUTOCLAIM", stream, "workers", "me", "0", "0"),
                ("XCLAIM", stream, "workers", "me", "0", "0-1"),
                ("RPOP", "glide:{etl}:lifo"),
                ("DEL", stream),
                ("RENAME", stream, "glide:{etl}:other"),
                ("FLUSHDB",),
                ("KEYS", "*"),
                ("CONFIG", "GET", "*"),
                ("ACL", "LIST"),
                ("EVAL", "return 1", 0),
                ("FUNCTION", "DELETE", "glidemq"),
                ("DEBUG", "SLEEP", "0"),
                ("MONITOR",),
                ("REPLICAOF", "127.0.0.1", "1"),
                ("MIGRATE", "127.0.0.1", "1", stream, "0", "1"),
            ):
                refused(lambda words=words: client.execute_command(*words))  # type: ignore[misc]
        assert _dump(few.admin) == before
        with Libraries(url) as libraries:
            refused(lambda: libraries.load(replace=True))
        run_worker(["etl"], {"work": lambda ctx: ctx.data}, url=few.url)
        queue.add_and_wait("work", timeout=LONG)
        assert queue.get_job(job_id).result == 1


@pytest.mark.parametrize("role", ["worker", "producer", "observer"])
def test_other_queues_are_out_of_reach(few: Guarded, role: str) -> None:
    few.admin.set("elsewhere", "1")
    with Queue("other", f"valkey://127.0.0.1:{few.port}") as open_queue:
        open_queue.add("work", "secret")
    before = _dump(few.admin)
    url = few.url_of(role)
    with Queue("other", url) as queue, FlowProducer(url) as flows, Broadcast("other", url) as news:
        refused(queue.counts)
        refused(lambda: queue.get_job("1"))
        refused(lambda: queue.add("work"))
        refused(lambda: news.publish("x", 1))
        spec = FlowSpec(
            "n",
            [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="other", job="work", after=["a"])],
        )
        refused(lambda: flows.submit(spec, flow_id="f"))
    with redis.Redis(port=few.port, username=role, password=SECRET, driver_info=None) as client:
        refused(lambda: client.get("elsewhere"))
        refused(lambda: client.hgetall("glide:{other}:job:1"))
    after = _dump(few.admin)
    assert {key: value for key, value in after.items() if "{other}" in key or key == "elsewhere"} == before


def test_a_worker_carries_nothing_into_a_queue_that_it_may_not_touch(
    few: Guarded, run_worker: RunWorker, eventually: Eventually
) -> None:
    """Who may write to both queues sends it there; only that flow waits."""
    few.set_user("producer", role_rule("producer", queues=["etl", "other"]))
    url = few.url_of("producer")
    with FlowProducer(url) as flows, Queue("etl", url) as queue:
        nodes = [
            FlowNode("a", queue="etl", job="work"),
            FlowNode("b", queue="other", job="work", after=["a"]),
        ]
        across = flows.submit(FlowSpec("n", nodes), flow_id="across")
        before = {key: value for key, value in _dump(few.admin).items() if "{other}" in key}
        assert before
        run_worker(["etl"], {"work": lambda ctx: ctx.data}, url=few.url, lease=SECOND)
        eventually(lambda: any("{other}" in key for key in few.denied()), timeout=30)
        inside = flows.submit(
            FlowSpec("n", [FlowNode("a", queue="etl", job="work", data=1)]), flow_id="inside"
        )
        assert inside.result(timeout=LONG) == {"a": 1}
        assert queue.add_and_wait("work", 2, timeout=LONG) == 2
        assert {key: value for key, value in _dump(few.admin).items() if "{other}" in key} == before
        assert not across.status().state.is_terminal


def test_another_database_needs_one_right_more(few: Guarded) -> None:
    url = f"{few.url_of('producer')}/1"
    with Queue("etl", url) as queue:
        refused(queue.counts)
    few.set_user("producer", f"{role_rule('producer')} +select")
    with Queue("etl", url) as queue:
        assert queue.add("work")


def test_the_document_has_the_rules_that_are_tried_here() -> None:
    text = " ".join(SECURITY.read_text(encoding="utf-8").split())
    assert role_rule("observer") in text
    for names in WITHOUT.values():
        assert f"`{' '.join(f'-{name}' for name in names)}`" in text
    assert f"`{' '.join(patterns(queues=['etl', 'spark']))}`" in text


def _dump(admin: Any) -> dict[str, Any]:
    return {key: admin.dump(key) for key in admin.scan_iter("*")}
