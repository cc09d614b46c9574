"""A server that lost everything is served again: none of its states ends a client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import EmbeddedServer, Flow, FlowNode, FlowProducer, FlowSpec, JobState, Queue
from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.restarts.conftest import Keeper

ETL = QueueKeys("glide", "etl")


def lose_functions(keeper: Keeper) -> None:
    keeper.client.function_flush()


def lose_everything(keeper: Keeper) -> None:
    keeper.client.flushall()
    keeper.client.function_flush()


def lose_the_group(keeper: Keeper) -> None:
    keeper.client.xgroup_destroy(ETL.key("stream"), "workers")


@pytest.mark.parametrize("lose", [lose_functions, lose_everything, lose_the_group])
@pytest.mark.parametrize("again", [False, True])
def test_an_exchange_goes_on(keeper: Keeper, lose: Any, *, again: bool) -> None:
    with Queue("etl", keeper.server.url) as queue:
        queue.add("work")
        held = keeper.begin()
        lose(keeper)
        request = exchange.Request([Outcome(held[0], Kind.DONE, "1")], 1, "t", again)
        (verdict,) = keeper.call(exchange.finish_and_fetch(ETL, "w", request, keeper.now)).verdicts
        assert verdict == "ok" or verdict.startswith("stale ")
        queue.add("work")
        assert len(keeper.begin()) == 1


def test_a_worker_serves_an_empty_server_in_place_of_its_own(
    run_worker: RunWorker, eventually: Eventually
) -> None:
    first = EmbeddedServer().start()
    url = first.url
    port = int(url.rpartition(":")[2])
    busy, go_on = threading.Event(), threading.Event()

    def work(ctx: Any) -> str:
        busy.set()
        go_on.wait(20)
        return "done"

    running = run_worker(["etl"], {"work": work}, url=url, concurrency=2)
    with Queue("etl", url) as queue:
        queue.add("work")
        assert busy.wait(10)
    first.stop()
    go_on.set()
    for last in (False, True):
        with EmbeddedServer(port=port):
            serve_one_job_and_one_flow(url, eventually)
            if last:
                running.stop()


def serve_one_job_and_one_flow(url: str, eventually: Eventually) -> None:
    with Queue("etl", url) as queue, FlowProducer(url) as flows:
        job_id = queue.add("work")
        flow: Flow = flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="work")]), flow_id="f")
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)
        eventually(lambda: flow.status().completed == 1, timeout=20)
