"""Flows that run to their end, whatever happens on the way."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Backoff,
    FlowProducer,
    FlowState,
    JobOptions,
    JobState,
    RetryLater,
    Unrecoverable,
)
from tests.builders import flow, node

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Record

LONG = timedelta(seconds=60)


DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


def reasons(outcome: Any) -> list[tuple[str, str]]:
    return [(failed.name, failed.reason) for failed in outcome.failed]


def test_a_diamond_runs_in_order_and_gets_its_inputs(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    inputs: dict[str, Any] = {}
    record = recorder()

    def work(ctx: Any) -> str:
        inputs[ctx.node] = dict(ctx.inputs)
        return record(ctx)

    run_worker(["etl"], {"work": work})
    flows.submit(DIAMOND).result(timeout=LONG)
    assert record.ended[0] == "a"
    assert record.ended[-1] == "d"
    assert inputs == {"a": {}, "b": {"a": "a!"}, "c": {"a": "a!"}, "d": {"b": "b!", "c": "c!"}}
    assert set(record.calls.values()) == {1}


def test_edges_across_queues_hold(flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]) -> None:
    record, queues = recorder(), ("etl", "spark", "bi")
    for queue in queues:
        run_worker([queue], {"work": record})
    nodes = [node("n0")] + [node(f"n{n}", f"n{n - 1}", queue=queues[n % 3]) for n in range(1, 12)]
    flows.submit(flow(*nodes, node("end", "n3", "n10", "n11", queue="bi"))).result(timeout=LONG)
    assert record.ended == [*(f"n{n}" for n in range(12)), "end"]


def test_a_worker_of_two_queues_runs_entries_that_have_the_same_id(
    url: str, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    release, started = threading.Event(), set[str]()

    def work(ctx: Any) -> None:
        started.add(ctx.queue)
        release.wait(20)

    run_worker(["a", "b"], {"work": work}, concurrency=4)
    for queue in ("a", "b"):
        fields = {"id": "1", "name": "work", "data": "{}", "opts": "{}", "state": "waiting"}
        redis_client.hset(f"glide:{{{queue}}}:job:1", mapping=fields)
        redis_client.xadd(f"glide:{{{queue}}}:stream", {"jobId": "1", "name": "work"}, id="1000-1")
        eventually(lambda q=queue: q in started)  # type: ignore[misc]
    release.set()


def test_three_hundred_nodes_fan_out_and_in(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    record = recorder()
    run_worker(["etl"], {"work": record}, concurrency=20)
    middle = [node(f"m{n}", "start") for n in range(300)]
    found = flows.submit(flow(node("start"), *middle, node("end", *(m.name for m in middle))))
    outcome = found.wait(timeout=LONG)
    assert (outcome.status.completed, outcome.status.failed) == (302, 0)
    assert (record.ended[0], record.ended[-1]) == ("start", "end")
    assert set(record.calls.values()) == {1}
    assert len(outcome.results) == 302


def test_a_failure_spreads_and_everything_else_completes(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    record = recorder("bad")
    run_worker(["etl", "spark"], {"work": record})
    spec = flow(
        node("good"),
        node("bad", queue="spark"),
        node("after", "bad", "good"),
        node("far", "after", queue="spark"),
        node("free", "good"),
    )
    found = flows.submit(spec, flow_id="f")
    outcome = found.wait(timeout=LONG)
    assert outcome.status.state is FlowState.FAILED
    assert (outcome.status.completed, outcome.status.failed, outcome.status.open) == (2, 3, 0)
    assert outcome.status.reason == "bad: ValueError: bad is broken"
    assert reasons(outcome) == [
        ("bad", "ValueError: bad is broken"),
        ("after", "upstream failed: bad"),
        ("far", "upstream failed: bad"),
    ]
    assert outcome.results == {"good": "good!", "free": "free!"}
    assert set(record.calls) == {"good", "bad", "free"}


def test_a_long_cascade_reaches_every_node(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    run_worker(["etl"], {"work": recorder("start")})
    middle = [node(f"m{n}", "start") for n in range(250)]
    outcome = flows.submit(flow(node("start"), *middle, node("end", "m249"))).wait(timeout=LONG)
    assert (outcome.status.state, outcome.status.failed) == (FlowState.FAILED, 252)
    assert outcome.failed[0].name == "start"


def test_attempts_are_used_up_with_pauses_between(flows: FlowProducer, run_worker: RunWorker) -> None:
    times: list[float] = []

    def work(ctx: Any) -> int:
        times.append(time.monotonic())
        assert ctx.attempt == len(times)
        if len(times) < 3:
            raise ValueError("not yet")
        return int(ctx.attempt)

    run_worker(["etl"], {"work": work})
    options = JobOptions(attempts=3, backoff=Backoff("exponential", timedelta(milliseconds=100)))
    assert flows.submit(flow(node("a", options=options))).result(timeout=LONG) == {"a": 3}
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[0] >= 0.095
    assert pauses[1] >= 0.195
    assert sum(pauses) < 3


def test_the_last_attempt_decides(flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]) -> None:
    record = recorder("a")
    run_worker(["etl"], {"work": record})
    outcome = flows.submit(flow(node("a", options=JobOptions(attempts=3)), node("b", "a"))).wait(timeout=LONG)
    assert record.calls == {"a": 3}
    assert [(failed.name, failed.attempts) for failed in outcome.failed] == [("a", 3), ("b", 0)]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_run_that_takes_too_long_fails_and_is_asked_to_stop(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, kind: str
) -> None:
    stopped: list[str] = []

    def in_thread(ctx: Any) -> None:
        ctx.cancelled.wait(20)
        stopped.append("stopped")

    async def on_loop(ctx: Any) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            stopped.append("stopped")

    run_worker(["etl"], {"work": in_thread if kind == "thread" else on_loop})
    options = JobOptions(timeout=timedelta(milliseconds=100))
    outcome = flows.submit(flow(node("a", options=options))).wait(timeout=LONG)
    assert reasons(outcome) == [("a", "TimeoutError: still running after 0:00:00.100000")]
    assert eventually(lambda: stopped) == ["stopped"]


def test_an_unrecoverable_failure_is_not_tried_again(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls: list[int] = []

    def work(ctx: Any) -> None:
        calls.append(ctx.attempt)
        raise Unrecoverable("no such table")

    run_worker(["etl"], {"work": work})
    outcome = flows.submit(flow(node("a", options=JobOptions(attempts=5)))).wait(timeout=LONG)
    assert (reasons(outcome), calls) == ([("a", "no such table")], [1])


def test_a_handler_may_ask_to_be_run_later(flows: FlowProducer, run_worker: RunWorker) -> None:
    times: list[float] = []

    def work(ctx: Any) -> str:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RetryLater(timedelta(milliseconds=200), "busy")
        return "done"

    run_worker(["etl"], {"work": work})
    assert flows.submit(flow(node("a", options=JobOptions(attempts=2)))).result(timeout=LONG) == {"a": "done"}
    assert times[1] - times[0] >= 0.195


async def waits_for_something_cancelled(ctx: Any) -> None:
    other = asyncio.create_task(asyncio.sleep(20))
    other.cancel()
    await other


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_mute(ctx: Any) -> None:
    raise Mute


def raises_half_a_character(ctx: Any) -> None:
    raise ValueError("\ud800")


def asks_for_a_retry_without_a_duration(ctx: Any) -> None:
    raise RetryLater("5")  # type: ignore[arg-type]  # a user's mistake


def returns_a_set(ctx: Any) -> Any:
    return {1}


async def returns_nan(ctx: Any) -> float:
    return float("nan")


def test_whatever_a_handler_does_its_job_ends_and_the_worker_goes_on(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    expected: dict[Any, str] = {
        waits_for_something_cancelled: "CancelledError",
        raises_mute: "Mute",
        raises_half_a_character: "ValueError: ?",
        asks_for_a_retry_without_a_duration: "ConfigurationError: the delay of RetryLater",
        returns_a_set: "EncodeError: result of job returns_a_set is not JSON",
        returns_nan: "EncodeError: result of job returns_nan is not JSON",
    }
    handlers = {handler.__name__: handler for handler in expected}
    run_worker(["etl"], {**handlers, "next": lambda ctx: 1}, concurrency=1)
    for handler, reason in expected.items():
        outcome = flows.submit(flow(node("a", job=handler.__name__))).wait(timeout=timedelta(seconds=10))
        assert outcome.failed[0].reason.startswith(reason)
        assert flows.submit(flow(node("a", job="next"))).result(timeout=timedelta(seconds=10)) == {"a": 1}


@pytest.mark.parametrize("stored", ["{", "[" * 50_000, "gz:x"], ids=range(3))
def test_payloads_that_cannot_be_read_fail_their_job_and_not_the_worker(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, stored: str, recorder: type[Record]
) -> None:
    job = "glide:{etl}:job:f~a"
    found = flows.submit(flow(node("a"), node("b", "a"), node("c")), flow_id="f")
    redis_client.hset(job, "data", stored)
    run_worker(["etl"], {"work": recorder()}, concurrency=1)
    outcome = found.wait(timeout=timedelta(seconds=10))
    assert reasons(outcome)[0][0] == "a"
    assert reasons(outcome)[0][1].startswith("DecodeError: data of job work")
    assert outcome.results == {"c": "c!"}


def test_an_input_that_cannot_be_read_fails_its_node_and_not_the_worker(
    flows: FlowProducer,
    run_worker: RunWorker,
    redis_client: Any,
    eventually: Eventually,
    recorder: type[Record],
) -> None:
    record = recorder()
    run_worker(["etl"], {"work": record}, concurrency=1)
    found = flows.submit(
        flow(node("a"), node("b", "a", queue="later"), node("c", queue="later")), flow_id="f"
    )
    eventually(lambda: found.nodes()[0].state is JobState.COMPLETED)
    redis_client.hset("glide:{later}:job:f~b", "x", "y")
    redis_client.hset("glide:{etl}:job:f~a", "returnvalue", "{")
    run_worker(["later"], {"work": record}, concurrency=1)
    eventually(lambda: found.status().state is FlowState.FAILED)
    nodes = {found.name: found for found in found.nodes()}
    assert nodes["b"].reason == "DecodeError: result of node a is not JSON: JSONDecodeError"
    assert nodes["c"].state is JobState.COMPLETED


def test_an_unknown_handler_fails_the_node_and_lists_the_names(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    run_worker(["etl"], {"work": recorder(), "other": recorder()})
    outcome = flows.submit(flow(node("a", job="wrok", options=JobOptions(attempts=3)))).wait(timeout=LONG)
    ((name, reason),) = reasons(outcome)
    worker = f"worker {socket.gethostname()} {os.getpid()} (known: other, work)"
    assert name == "a"
    assert reason.startswith(
        f"HandlerNotFound: no handler for job 'wrok' in {worker}, nor in another live worker"
    )


def test_progress_and_log_are_kept_with_the_job(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    release = threading.Event()

    def work(ctx: Any) -> None:
        ctx.progress({"rows": 5})
        ctx.log("five rows")
        assert release.wait(20)

    run_worker(["etl"], {"work": work})
    found = flows.submit(flow(node("a")), flow_id="f")
    eventually(lambda: found.nodes()[0].progress == {"rows": 5})
    assert eventually(lambda: redis_client.lrange("glide:{etl}:log:f~a", 0, -1)) == ["five rows"]
    release.set()
    found.wait(timeout=LONG)
