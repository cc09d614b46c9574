"""Why an array in which nothing runs waits, and until when."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import ArrayNode, Backoff, FlowProducer, FlowSpec, Queue
from tests.builders import node

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

MINUTE = timedelta(minutes=1)


def test_an_array_in_which_nothing_runs_says_why(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, queue: Queue
) -> None:
    held = threading.Event()

    def score(ctx: Any) -> None:
        if ctx.data == 1:
            assert held.wait(30)
            raise ValueError("no model")

    backoff = Backoff("fixed", MINUTE * 5)
    array = ArrayNode("score", over=range(2), queue="etl", attempts=2, backoff=backoff, max_running=1)
    flow = flows.submit(FlowSpec("n", [array, node("after", "score")]))

    def told() -> dict[str, str]:
        return {name: one.reason for name, one in flow.waits().items()}

    assert told() == {"score": "no live worker serves queue etl"}
    queue.pause()
    assert told() == {"score": "queue etl is paused; glidemq queue resume etl"}
    run_worker(["etl"], {"score": score})
    queue.resume()
    eventually(lambda: flow.array("score").counts().completed == 1)
    assert told() == {}
    held.set()
    eventually(lambda: told() == {"score": "its delay, or the next attempts of its elements"})
    until = flow.waits()["score"].until
    assert until is not None
    assert 200 < (until - datetime.now(UTC)).total_seconds() <= 301
    flow.cancel()
