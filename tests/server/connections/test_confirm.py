"""Writes that wait until they are confirmed: what survives then, what is reported, what is lost without."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    Queue,
)
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request, exchange
from glidemq_orchestrate.errors import InvalidJob, JobNotFound, NotConfirmed, TransportError
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.handler import Handlers
from tests.conftest import Eventually, RunWorker
from tests.server.connections.test_sentinel import unless_down
from tests.server.connections.topologies import Pair, cut_off, running_pair, stopped

HOUR_MS = 3_600_000
LIMIT = 0.3  # seconds; a replica that is cut off does not get it in any time
NODES = [FlowNode(f"n{n}", queue="etl", job="work", after=[f"n{n - 1}"] if n else []) for n in range(300)]
SPEC = FlowSpec("n", NODES)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with running_pair(tmp_path) as running:
        yield running


def sure(pair: Pair, *, limit: float = LIMIT) -> ConnectionSettings:
    return ConnectionSettings(pair.url, confirm="replicas:1", confirm_timeout=limit)


def named(job_id: str) -> JobOptions:
    return JobOptions(job_id=job_id)


def test_only_with_it_is_reported_what_a_failover_loses(pair: Pair, eventually: Eventually) -> None:
    primary, replica = pair.primary, pair.replica
    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    with Queue("etl", pair.url) as plain, Queue("etl", sure(pair)) as confirmed:
        confirmed.add("work", options=named("before"))
        with cut_off(replica, primary):
            plain.add("work", options=named("plain"))
            with pytest.raises(NotConfirmed, match=r"only 0 of 1 replicas got it within 0\.3 s"):
                confirmed.add("work", options=named("sure"))
            assert plain.get_job("sure").state is JobState.WAITING  # the work stands
            primary.kill()
        eventually(lambda: replica.client.role()[0] == "master", timeout=30)
        assert eventually(lambda: unless_down(lambda: plain.get_job("before")), timeout=30)
        for lost in ("plain", "sure"):
            with pytest.raises(JobNotFound):
                plain.get_job(lost)
        with pytest.raises(NotConfirmed):  # there is no replica now
            confirmed.add("work", options=named("sure"))


def test_a_repeat_is_confirmed_like_the_first_call(pair: Pair, eventually: Eventually) -> None:
    primary, replica = pair.primary, pair.replica
    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    with Queue("etl", sure(pair)) as queue, FlowProducer(sure(pair)) as flows:
        queue.counts()
        with cut_off(replica, primary):
            for _ in range(2):  # the second time nothing is written
                with pytest.raises(NotConfirmed):
                    flows.submit(SPEC, flow_id="f")
                with pytest.raises(NotConfirmed):
                    queue.add("work", options=named("own"))
            with Queue("etl", sure(pair)) as other, pytest.raises(NotConfirmed):
                other.add("work", options=named("own"))  # by a connection that has never written anything
            assert flows.get("f").status().state is FlowState.RUNNING

        def repeat() -> bool:
            flows.submit(SPEC, flow_id="f")
            with pytest.raises(InvalidJob, match="already exists"):
                queue.add("work", options=named("own"))
            return True

        eventually(lambda: unless_down(repeat), timeout=30)
        primary.kill()
        status = eventually(lambda: unless_down(lambda: flows.get("f").status()), timeout=30)
        assert status is not None
        assert (status.state, status.total) == (FlowState.RUNNING, len(NODES))
        assert queue.get_job("own").state is JobState.WAITING
        states = Counter(node.state for node in flows.get("f").nodes())
        assert states == {JobState.WAITING: 1, JobState.WAITING_CHILDREN: len(NODES) - 1}


def test_a_repeat_that_writes_nothing_is_not_taken_for_confirmed(pair: Pair, eventually: Eventually) -> None:
    with FlowProducer(sure(pair)) as flows, FlowProducer(sure(pair)) as others:
        others.list()
        pair.replicated()
        with stopped(pair.replica):  # it counts as connected, and has all that the second one wrote
            for client in (flows, others):
                with pytest.raises(NotConfirmed):
                    client.submit(SPEC, flow_id="f")
        assert eventually(lambda: unless_down(lambda: others.submit(SPEC, flow_id="f")))


class Listener:
    """What the hooks of a worker were called with, and how often the handler ran."""

    def __init__(self) -> None:
        self.runs, self.ends = Counter[str](), Counter[str]()
        self.running, self.go_on = threading.Event(), threading.Event()
        self.handlers = Handlers()
        self.handlers.handler("work")(self.work)
        self.handlers.on_job(self.on_job)

    def work(self, ctx: Any) -> str:
        self.runs[ctx.job_id] += 1
        self.running.set()
        assert self.go_on.wait(60)
        return "done"

    def on_job(self, event: Any) -> None:
        if event.kind != "active":
            self.ends[f"{event.kind} {event.job_id}"] += 1


def test_a_result_counts_once_it_is_confirmed(
    pair: Pair, run_worker: RunWorker, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Listener()
    with Queue("etl", sure(pair)) as queue, Queue("etl", pair.url) as plain, caplog.at_level(logging.INFO):
        run_worker(["etl"], heard.handlers, url=sure(pair), concurrency=4)
        queue.add("work", options=named("a"))
        assert heard.running.wait(20)
        with cut_off(pair.replica, pair.primary):
            heard.go_on.set()
            eventually(lambda: plain.get_job("a").state is JobState.COMPLETED, timeout=20)
            said = "confirming the results of queue etl failed and is retried: NotConfirmed"
            eventually(lambda: said in caplog.text, timeout=20)
            plain.add("work", options=named("b"))
            assert not heard.ends
            assert plain.get_job("b").state is JobState.WAITING  # no more while results are not confirmed
        eventually(lambda: heard.ends == {"completed a": 1, "completed b": 1}, timeout=20)
        assert (heard.runs, caplog.text.count(said)) == ({"a": 1, "b": 1}, 1)


def test_a_result_that_a_failover_loses_is_reported_again(
    pair: Pair, run_worker: RunWorker, eventually: Eventually
) -> None:
    heard, primary, replica = Listener(), pair.primary, pair.replica
    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    with Queue("etl", pair.url) as queue:
        run_worker(["etl"], heard.handlers, url=sure(pair))
        queue.add("work", options=named("a"))
        assert heard.running.wait(20)
        pair.replicated()
        with cut_off(replica, primary):
            heard.go_on.set()
            eventually(lambda: queue.get_job("a").state is JobState.COMPLETED, timeout=20)
            primary.kill()
        eventually(lambda: replica.client.role()[0] == "master", timeout=30)

        def state() -> JobState | None:
            return unless_down(lambda: queue.get_job("a").state)

        eventually(lambda: state() is JobState.COMPLETED, timeout=30)
        assert not heard.ends  # no replica can confirm it
        primary.start()
        primary.client.replicaof("127.0.0.1", replica.port)  # the sentinel takes ten seconds for it
        eventually(lambda: heard.ends == {"completed a": 1}, timeout=30)
        assert heard.runs == {"a": 1}


def test_an_early_report_that_a_failover_loses_is_sent_again(
    pair: Pair, run_worker: RunWorker, eventually: Eventually
) -> None:
    """The elements before a long one have ended; the new primary knows only that they are leased."""
    primary, replica, runs = pair.primary, pair.replica, Counter[Any]()
    running, go_on = threading.Event(), threading.Event()

    def work(ctx: Any) -> int:
        runs[ctx.node, ctx.index] += 1
        if (ctx.node, ctx.index) == ("a", 5):
            running.set()
            assert go_on.wait(60)
        return int(ctx.data)

    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    with FlowProducer(pair.url) as flows:
        run_worker(["etl"], {"work": work}, url=sure(pair), concurrency=1, lease=timedelta(minutes=5))
        learn, a = (ArrayNode(name, queue="etl", job="work", over=range(400)) for name in ("learn", "a"))
        assert flows.submit(FlowSpec("n", [learn])).wait(timeout=60).state is FlowState.COMPLETED
        pair.replicated()
        flow = flows.submit(FlowSpec("n", [a]), flow_id="f")
        assert running.wait(20)
        with cut_off(replica, primary):
            eventually(lambda: flow.array("a").counts().completed >= 5, timeout=20)
            primary.kill()
        eventually(lambda: replica.client.role()[0] == "master", timeout=30)
        go_on.set()
        primary.start()
        primary.client.replicaof("127.0.0.1", replica.port)  # the sentinel takes ten seconds for it
        outcome = eventually(lambda: unless_down(lambda: flow.wait(timeout=60)), timeout=60)
        assert outcome is not None
        assert outcome.state is FlowState.COMPLETED
        assert flow.array("a").results() == dict(enumerate(range(400)))
        assert runs == Counter((node, at) for node in ("learn", "a") for at in range(400)), "each ran once"


def test_a_takeover_that_a_failover_undoes_leaves_the_job_as_it_was(
    pair: Pair, eventually: Eventually
) -> None:
    """A lease is not waited for: the new primary never learned that another attempt had begun."""
    primary, replica = pair.primary, pair.replica
    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    keys, clock = QueueKeys("glide", "etl"), SystemClock()
    reclaim = ("gmo_reclaim", 1, keys.key("stream"), clock.now_ms() + HOUR_MS, "workers", "b", 0, 1_000, 3)
    with Queue("etl", pair.url) as queue:
        queue.add("work", options=named("a"))
        before = queue._run(exchange(keys, "a", Request([], 1, "before"), clock)).fetched[0]
        pair.replicated()
        with cut_off(replica, primary):
            primary.client.fcall(*reclaim)
            after = queue._run(exchange(keys, "b", Request([], 1, "after"), clock)).fetched[0]
            assert (before.job_id, after.job_id) == ("a", "a")
            primary.kill()
        eventually(lambda: replica.client.role()[0] == "master", timeout=30)

        def report(attempt: Attempt, result: str) -> list[str] | None:
            outcome = Request([Outcome(attempt, Kind.DONE, result)], 0, "end")
            return unless_down(lambda: queue._run(exchange(keys, "c", outcome, clock)).verdicts)

        late = eventually(lambda: report(after, '"after"'), timeout=30)
        assert late
        assert late[0].startswith("stale ")
        assert report(before, '"before"') == ["ok"]
        assert queue.get_job("a").result == "before"


def test_a_stop_does_not_wait_for_ever(pair: Pair, run_worker: RunWorker, eventually: Eventually) -> None:
    heard = Listener()
    heard.go_on.set()
    with Queue("etl", pair.url) as queue:
        running = run_worker(["etl"], heard.handlers, url=sure(pair))
        with cut_off(pair.replica, pair.primary):
            queue.add("work", options=named("a"))
            eventually(lambda: queue.get_job("a").state is JobState.COMPLETED, timeout=20)
            running.stop()
        assert (heard.runs, heard.ends) == ({"a": 1}, {})


def test_a_job_whose_addition_was_not_confirmed_is_not_waited_for(pair: Pair) -> None:
    with Queue("etl", sure(pair)) as queue, cut_off(pair.replica, pair.primary):
        with pytest.raises(NotConfirmed):
            queue.add_and_wait("work", timeout=timedelta(hours=1))
        assert issubclass(NotConfirmed, TransportError)
