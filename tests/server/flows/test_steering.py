"""Retrying, cancelling and waiting: flows steered from outside."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Backoff,
    FlowProducer,
    FlowState,
    JobOptions,
    JobState,
)
from glidemq_orchestrate.attempts import exchange, workers
from glidemq_orchestrate.errors import FlowCancelled, LeaseLost
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import flow, node

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand, Record

LONG = timedelta(seconds=60)


DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


class TestRetrying:
    def test_what_completed_keeps_its_result_and_the_rest_runs_again(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("b")
        run_worker(["etl"], {"work": record})
        found = flows.submit(DIAMOND)
        assert found.wait(timeout=LONG).status.state is FlowState.FAILED
        assert record.calls == {"a": 1, "b": 1, "c": 1}
        record.broken.clear()
        assert found.retry_failed() is FlowState.RUNNING
        outcome = found.wait(timeout=LONG)
        assert outcome.status.state is FlowState.COMPLETED
        assert record.calls == {"a": 1, "b": 2, "c": 1, "d": 1}
        assert outcome.results == {name: f"{name}!" for name in "abcd"}
        assert (outcome.status.completed, outcome.status.failed, outcome.status.reason) == (4, 0, "")

    def test_a_retried_node_has_all_its_attempts_again(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("a")
        run_worker(["etl"], {"work": record})
        found = flows.submit(flow(node("a", options=JobOptions(attempts=2))))
        for round_ in (1, 2, 3):
            outcome = found.wait(timeout=LONG)
            assert outcome.status.state is FlowState.FAILED
            assert record.calls["a"] == 2 * round_
            found.retry_failed()

    def test_a_flow_that_completed_is_left_alone(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder()
        run_worker(["etl"], {"work": record})
        found = flows.submit(DIAMOND)
        found.wait(timeout=LONG)
        assert found.retry_failed() is FlowState.COMPLETED
        assert found.status().state is FlowState.COMPLETED
        assert set(record.calls.values()) == {1}

    def test_a_large_failed_flow_is_reset_as_a_whole(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("start")
        run_worker(["etl", "spark"], {"work": record}, concurrency=20)
        middle = [node(f"m{n}", "start", queue="spark" if n % 2 else "etl") for n in range(250)]
        found = flows.submit(flow(node("start"), *middle, node("end", *(m.name for m in middle))))
        found.wait(timeout=LONG)
        record.broken.clear()
        found.retry_failed()
        outcome = found.wait(timeout=LONG)
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 252)
        assert record.calls == {"start": 2, "end": 1} | {m.name: 1 for m in middle}


class TestCancelling:
    """In every state a node can be in."""

    def cancelled(self, flows: FlowProducer, found: Any) -> None:
        assert found.cancel("enough") is FlowState.RUNNING
        status = found.status()
        assert (status.state, status.open, status.reason) == (FlowState.CANCELLED, 0, "enough")
        with pytest.raises(FlowCancelled, match="enough"):
            found.result(timeout=LONG)

    def repaired(self, found: Any, run_worker: RunWorker, recorder: type[Record]) -> None:
        record = recorder()
        run_worker(["etl"], {"work": record})
        assert found.retry_failed() is FlowState.RUNNING
        outcome = found.wait(timeout=LONG)
        assert outcome.status.state is FlowState.COMPLETED
        assert set(record.calls.values()) == {1}

    def test_waiting_and_blocked(
        self, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, recorder: type[Record]
    ) -> None:
        found = flows.submit(DIAMOND)
        self.cancelled(flows, found)
        assert redis_client.xlen("glide:{etl}:stream") == 0
        assert {n.state for n in found.nodes()} == {JobState.FAILED}
        assert {n.reason for n in found.nodes()} == {"cancelled: enough"}
        self.repaired(found, run_worker, recorder)

    def test_delayed(
        self, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, recorder: type[Record]
    ) -> None:
        found = flows.submit(flow(node("a", options=JobOptions(delay=timedelta(milliseconds=500)))))
        assert redis_client.zcard("glide:{etl}:scheduled") == 1
        self.cancelled(flows, found)
        assert redis_client.zcard("glide:{etl}:scheduled") == 0
        self.repaired(found, run_worker, recorder)

    def test_between_two_attempts(
        self,
        flows: FlowProducer,
        run_worker: RunWorker,
        redis_client: Any,
        eventually: Eventually,
        recorder: type[Record],
    ) -> None:
        running = run_worker(["etl"], {"work": recorder("a")})
        options = JobOptions(attempts=2, backoff=Backoff("fixed", timedelta(hours=1)))
        found = flows.submit(flow(node("a", options=options), node("b", "a")))
        eventually(lambda: found.nodes()[0].state is JobState.DELAYED)
        self.cancelled(flows, found)
        assert redis_client.zcard("glide:{etl}:scheduled") == 0
        running.stop()
        self.repaired(found, run_worker, recorder)

    @pytest.mark.parametrize("kind", ["thread", "async"])
    def test_active(  # noqa: PLR0917  fixtures
        self,
        flows: FlowProducer,
        run_worker: RunWorker,
        redis_client: Any,
        eventually: Eventually,
        kind: str,
        recorder: type[Record],
    ) -> None:
        stopped = threading.Event()
        begun = threading.Event()

        def in_thread(ctx: Any) -> str:
            begun.set()
            if ctx.cancelled.wait(20):
                stopped.set()
            return "late"

        async def on_loop(ctx: Any) -> str:
            begun.set()
            try:
                await asyncio.sleep(20)
            finally:
                stopped.set()
            return "late"

        running = run_worker(["etl"], {"work": in_thread if kind == "thread" else on_loop})
        found = flows.submit(DIAMOND, flow_id="f")
        assert begun.wait(20)
        self.cancelled(flows, found)
        assert stopped.wait(20)
        running.stop()
        assert redis_client.xpending("glide:{etl}:stream", "workers")["pending"] == 0
        assert found.results() == {}
        assert found.status().state is FlowState.CANCELLED
        self.repaired(found, run_worker, recorder)

    def test_a_late_result_is_refused_and_changes_nothing(
        self, flows: FlowProducer, hand: Hand, redis_client: Any
    ) -> None:
        found = flows.submit(DIAMOND, flow_id="f")
        queue = QueueKeys("glide", "etl")
        hand.run(workers.open_queues([queue]))
        request = exchange.Request([], 1, "token")
        (attempt,) = hand.run(ask(exchange.finish_and_fetch(queue, "me", request, 5))).fetched
        found.cancel("enough")
        before = redis_client.hgetall("glide:{etl}:job:f~a")
        late = exchange.Request([exchange.Outcome(attempt, kind, "1") for kind in exchange.Kind], 0, "token")
        verdicts = hand.run(ask(exchange.finish_and_fetch(queue, "me", late, 6))).verdicts
        assert {verdict.split()[0] for verdict in verdicts} == {"stale"}
        assert hand.run(ask(exchange.heartbeats(queue, [attempt], 6))) == [-1]
        assert isinstance(hand.answer(attempt_calls.progress(attempt, queue, "1", 6)), LeaseLost)
        assert redis_client.hgetall("glide:{etl}:job:f~a") == before

    def test_a_large_flow_is_cancelled_as_a_whole(self, flows: FlowProducer, redis_client: Any) -> None:
        found = flows.submit(flow(*(node(f"n{n}") for n in range(350))))
        self.cancelled(flows, found)
        assert found.status().failed == 350
        assert redis_client.xlen("glide:{etl}:stream") == 0

    def test_what_had_completed_keeps_its_result(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, recorder: type[Record]
    ) -> None:
        running = run_worker(["etl"], {"work": recorder()})
        found = flows.submit(flow(node("a"), node("b", "a", queue="nobody")))
        eventually(lambda: found.status().completed == 1)
        self.cancelled(flows, found)
        assert found.results() == {"a": "a!"}
        running.stop()


class TestWaiting:
    def test_a_lost_events_stream_loses_no_end(
        self, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        release = threading.Event()
        run_worker(["etl"], {"work": lambda ctx: release.wait(20)})
        found = flows.submit(flow(node("a")))
        ended: list[Any] = []
        waiter = threading.Thread(target=lambda: ended.append(found.wait(timeout=LONG)))
        waiter.start()
        eventually(
            lambda: [c for c in redis_client.client_list() if c["cmd"] == "xread" and "b" in c["flags"]]
        )
        release.set()
        eventually(lambda: redis_client.delete("glide:{etl}:events") and found.status().state.is_terminal)
        redis_client.delete("glide:{etl}:events")
        waiter.join(20)
        assert [outcome.status.state for outcome in ended] == [FlowState.COMPLETED]

    def test_a_wait_for_an_ended_flow_returns_without_any_event(
        self, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": recorder()})
        found = flows.submit(DIAMOND)
        found.wait(timeout=LONG)
        redis_client.delete("glide:{etl}:events")
        assert found.wait(timeout=timedelta(seconds=1)).status.state is FlowState.COMPLETED

    def test_many_events_of_others_do_not_hide_the_end(
        self, flows: FlowProducer, run_worker: RunWorker, queue: Any, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": recorder()}, concurrency=20)
        others = flows.submit(flow(*(node(f"n{n}") for n in range(300))))
        found = flows.submit(flow(node("a"), node("b", "a")))
        assert found.wait(timeout=LONG).status.state is FlowState.COMPLETED
        others.wait(timeout=LONG)
