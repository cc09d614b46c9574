"""Any bytes in any field of anything stored: workers, listings and supervisors go on.

``GLIDEMQ_FUZZ=1000`` looks for so many random cases; otherwise the same fifty each time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_orchestrate import EventReader, FlowNode, FlowProducer, FlowSpec, JobOptions, JobState, Queue
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.schedules import ops as scheduler
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

P = b"glide:{etl}:"
SCHEDULERS = (b"schedulers", b"gmo:schedulers", b"gmo:schedulers:finished", b"gmo:schedulers:paused")
BESIDE_SCHEDULERS = (b"gmo:schedulers:due", b"gmo:schedulers:last", b"gmo:schedulers:finished:at")
ETL = QueueKeys("glide", "etl")
SECOND = timedelta(seconds=1)
CASES = os.environ.get("GLIDEMQ_FUZZ", "")
FUZZ = settings(
    max_examples=int(CASES or 50),
    derandomize=not CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

MARK = json.dumps({"gmo": {"flow": "f", "node": "n"}}).encode()
ODD_VALUES = [
    *(b"", b"0", b"1", b"-1", b"1.5", b"x", b"9" * 5_000, b"9223372036854775807", b"nan", b"inf", b"-inf"),
    *(b"1e300", b"-1e300", b"\xff", b"caf\xe9", b"\x00", b'"\\ud83d"', b"[" * 2_000, b"{}", b"[]", b"null"),
    *(b"true", b"gz:", b"gz:AAAA", b"waiting", b"active", b"glide:{etl}:", b'[{"name":1,"data":{}}]'),
    *(b'{"attempts":1e999}', b'{"timeout":1e300}', b'{"backoff":{"type":"x","delay":-1}}'),
    *(b'{"fallbacks":[1]}', b'{"lockDuration":"\\udfff"}', MARK, MARK.replace(b'"f"', b'"\\ud83d"')),
]
VALUES = st.sampled_from(ODD_VALUES) | st.binary(max_size=40)
JOB_FIELDS = st.sampled_from(
    [
        "id",
        "name",
        "data",
        "opts",
        "timestamp",
        "attemptsMade",
        "delay",
        "priority",
        "maxAttempts",
        "processedOn",
        "finishedOn",
        "failedReason",
        "parentId",
        "parentQueue",
        "parentIds",
        "orderingKey",
        "orderingSeq",
        "groupKey",
        "cost",
        "expireAt",
        "lifo",
        "progress",
        "revoked",
        "stalledCount",
        "schedulerName",
        "tpmTokens",
        "fallbackIndex",
        "signals",
        "budgetKey",
        "lastActive",
        "activeSource",
        "groupSlot",
        "returnvalue",
        "state",
        "gmo:flow",
        "gmo:home",
        "gmo:node",
        "gmo:token",
        "gmo:entry",
        "gmo:on_failure",
        "gmo:rule",
        "gmo:schedule",
    ]
)
SPOILT_JOBS = st.lists(st.dictionaries(JOB_FIELDS, VALUES, min_size=1, max_size=4), min_size=1, max_size=3)
FLOW_FIELDS = st.sampled_from(
    [
        "name",
        "state",
        "total",
        "completed",
        "failed",
        "skipped",
        "labels",
        "created_at",
        "finished_at",
        "reason",
        "generation",
        "retention",
        "deadline",
        "final",
        "listed",
        "ignored",
        "fail_fast",
    ]
)
ENTRY_FIELDS = st.sampled_from(
    [
        "every",
        "pattern",
        "repeatAfterComplete",
        "tz",
        "startDate",
        "endDate",
        "limit",
        "iterationCount",
        "lastRun",
        "nextRun",
        "template",
        "catchUp",
        "catchUpLimit",
        "overlap",
        "logicalTime",
    ]
)
ODD: list[Any] = [1, 0, -1, 1.5, 9e15, -9e15, 1e300, "x", "all", "last", "* * * * *", "UTC", "\ud83d", True]
ODD += [None, [1], {"name": "\ud83d"}, {"data": 1, "opts": [1]}]
ENTRIES = st.dictionaries(ENTRY_FIELDS, st.sampled_from(ODD) | st.integers(0, 2**41)).map(json.dumps)
EVENT_FIELDS = st.sampled_from([b"event", b"jobId", b"data", b"delay", b"flowId"]) | VALUES


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    """A client that sends and reads bytes."""
    from redis import Redis  # noqa: PLC0415  beside the other drivers of the tests

    with Redis.from_url(url.replace("valkey://", "redis://")) as client:
        yield client


def key(job_id: str) -> bytes:
    return P + b"job:" + job_id.encode()


def everything_listed(queue: Queue) -> set[str]:
    """Every way to list jobs; the ids of those that a search finds."""
    for state in set(JobState) - {JobState.SKIPPED}:
        queue.get_jobs(state)
        queue.get_jobs(state, exclude_data=True)
    queue.counts()
    queue.scan_jobs()
    queue.dead_letters()
    queue.groups()
    queue.metrics(JobState.COMPLETED)
    queue.workers()
    queue.search(name="work", data={"a": 1})
    return {job.id for job in queue.search(limit=10_000)}


def test_jobs(raw: Any, queue: Queue, run_worker: RunWorker) -> None:
    """A worker meets spoilt jobs of every kind, and completes the sound one behind them."""
    queue.set_dead_letter_queue("dead")
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data}, lease=SECOND, max_stalled=0)
    kinds = [
        JobOptions(),
        JobOptions(lifo=True),
        JobOptions(priority=3),
        JobOptions(attempts=2, delay=SECOND / 100),
    ]

    @FUZZ
    @given(SPOILT_JOBS, st.sampled_from(kinds))
    def holds(spoilt: list[dict[str, bytes]], options: JobOptions) -> None:
        queue.pause()
        bad = [queue.add("work", "bad", options=options) for _ in spoilt]
        for job_id, fields in zip(bad, spoilt, strict=True):
            raw.hset(key(job_id), mapping=fields)
        good = queue.add("work", "good")
        assert everything_listed(queue) >= {good}
        queue.resume()
        until = time.monotonic() + 10
        while (state := raw.hget(key(good), "state")) != b"completed" and time.monotonic() < until:
            assert running.error is None
            time.sleep(0.002)
        assert state == b"completed"
        everything_listed(queue)
        raw.delete(*map(key, bad))

    holds()
    assert queue.add_and_wait("work", 1, timeout=10 * SECOND) == 1
    assert running.error is None


@pytest.mark.long
def test_jobs_of_the_dead(raw: Any, queue: Queue, url: str) -> None:
    """A supervisor takes back what a dead worker held, whatever is stored there."""
    with Queue("etl", url) as other:
        other.add("warm")
    raw.flushdb()
    raw.xgroup_create(P + b"stream", "workers", "0", mkstream=True)

    @FUZZ
    @given(SPOILT_JOBS)
    def holds(spoilt: list[dict[str, bytes]]) -> None:
        bad = [queue.add("work", "bad") for _ in spoilt]
        good = queue.add("work", "good")
        raw.xreadgroup("workers", "dead", {P + b"stream": ">"}, count=100)
        for job_id, fields in zip(bad, spoilt, strict=True):
            raw.hset(key(job_id), mapping={"state": "active"} | fields)
        raw.hset(key(good), mapping={"state": "active", "processedOn": 1, "lastActive": 1})
        now = int(time.time() * 1000) + 10**6
        raw.hdel(P + b"gmo:supervised", "looked", "spared")  # somebody has asked all the time
        raw.fcall("gmo_reclaim", 1, P + b"stream", now, "workers", "other", 0, 0, 9)
        assert raw.hget(key(good), "state") == b"waiting"
        raw.fcall("gmo_expire_due", 1, P + b"gmo:due", now)
        raw.fcall("glidemq_promote", 3, P + b"scheduled", P + b"stream", P + b"events", now)
        raw.fcall("glidemq_nextDue", 2, P + b"scheduled", P + b"ratelimited")
        everything_listed(queue)
        queue.clean(JobState.FAILED)
        queue.drain(delayed=True)

    holds()


def test_events_and_descriptions(raw: Any, queue: Queue, url: str) -> None:
    queue.add("work")

    @FUZZ
    @given(st.dictionaries(EVENT_FIELDS, VALUES, min_size=1, max_size=4), VALUES, VALUES.filter(bool))
    def holds(event: dict[bytes, bytes], value: bytes, name: bytes) -> None:
        raw.xadd(P + b"events", event)
        raw.xadd(P + b"stream", event)
        raw.set(P + b"w:" + name, value)
        raw.zadd(P + b"gmo:workers", {name: 9e15})
        raw.hset(P + b"metrics:completed", name, value)
        raw.hset(P + b"usage:0", name, value)
        with EventReader("etl", url, position="0-0") as reader:
            read = reader.read()
        for one in read:
            _ = (
                one.at,
                one.job,
                one.count,
                one.progress,
                one.failed_reason,
                one.attempts_made,
                one.delay,
                one.priority,
            )
        assert read
        assert name in {worker.id.encode("utf-8", "surrogateescape") for worker in queue.workers()}
        everything_listed(queue)
        raw.delete(P + b"events", P + b"gmo:workers", P + b"metrics:completed", P + b"w:" + name)

    holds()


def test_schedulers(  # noqa: PLR0917  fixtures
    raw: Any, queue: Queue, url: str, hand: Hand, run_worker: RunWorker, eventually: Eventually
) -> None:
    schedulers = Schedules("etl", url)
    running = run_worker(["etl"], {"good": lambda ctx: None, "work": lambda ctx: None})

    @FUZZ
    @given(VALUES, VALUES | ENTRIES.map(str.encode), st.sampled_from(SCHEDULERS))
    def holds(name: bytes, entry: bytes, where: bytes) -> None:
        # At one moment: the running worker moves a schedule whose last slot is due to the finished ones.
        raw.delete(*(P + one for one in (*SCHEDULERS, *BESIDE_SCHEDULERS)))
        raw.hset(P + where, name, entry)
        raw.hset(P + b"gmo:schedulers:last", name, entry)
        good = {"every": 10**9, "nextRun": 1, "iterationCount": 0, "template": {"name": "good"}}
        raw.hset(P + b"schedulers", "good", json.dumps(good))
        assert {one.name for one in schedulers.list()} == {name.decode("utf-8", "surrogateescape"), "good"}
        raw.hdel(P + b"gmo:supervised", "schedules")  # a walk over all of them is due
        hand.run(scheduler.tick(ETL, SystemClock()))  # or the worker does it
        eventually(lambda: json.loads(raw.hget(P + b"schedulers", "good"))["iterationCount"] == 1)

    holds()
    schedulers.close()
    assert queue.add_and_wait("good", 1, timeout=10 * SECOND) is None
    assert running.error is None


def test_flows(raw: Any, flows: FlowProducer, hand: Hand) -> None:
    """Records, rows of the node table and jobs of one flow are spoilt; others are listed all the same."""
    good = flows.submit(FlowSpec("good", [FlowNode("a", queue="etl", job="work")]), flow_id="good")
    count = 0

    @FUZZ
    @given(
        st.dictionaries(FLOW_FIELDS, VALUES, max_size=3),
        VALUES,
        st.dictionaries(JOB_FIELDS, VALUES, max_size=3),
    )
    def holds(record: dict[str, bytes], row: bytes, job: dict[str, bytes]) -> None:
        nonlocal count
        count += 1
        name = f"bad{count}"
        nodes = [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])]
        bad = flows.submit(FlowSpec("bad", nodes), flow_id=name)
        raw.hset(P + b"gmo:flow:" + name.encode() + b":nodes", "b", row)
        for fields, at in ((record, P + b"gmo:flow:" + name.encode()), (job, key(f"{name}~a"))):
            if fields:
                raw.hset(at, mapping=fields)
        assert {flow.id for flow in flows.list(limit=1_000)} >= {"good", name}
        assert {node.name for node in bad.nodes()} == {"a", "b"}
        bad.status()
        try:
            bad.node("b")
            bad.results()
        except GlideMQError:
            pass  # of this flow alone
        hand.run(supervise.tick(Supervision(ETL, "gmo-worker-fuzz"), SystemClock()))
        assert good.status().total == 1

    holds()
