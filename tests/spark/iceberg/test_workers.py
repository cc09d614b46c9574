"""Workers publish tables of Iceberg, and commit what others could not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.spark.published import acceptance, catching_up
from glidemq_orchestrate.worker.handlers.handler import Handlers
from tests.spark.iceberg.lake import rows

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("spark", url) as one:
        yield one


@pytest.mark.usefixtures("_spark_environment")
class TestWorkers:
    @pytest.mark.long
    def test_days_that_are_published_at_the_same_time_are_all_there(
        self, url: str, run_worker: RunWorker, warm_handlers: Handlers
    ) -> None:
        run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"], concurrency=4)
        nodes = [
            FlowNode(
                f"d{n}", queue="spark", job="spark.python", data=step("orders", day=f"2026-01-0{n}", rows=n)
            )
            for n in range(1, 6)
        ]
        nodes.append(
            FlowNode(
                "total",
                queue="spark",
                job="spark.python",
                data=step("total"),
                after=[one.name for one in nodes],
            )
        )
        with FlowProducer(url) as flows:
            results = flows.submit(FlowSpec("days", nodes)).wait(timeout=timedelta(seconds=120)).results
        assert results["total"] == [15, 15]
        assert len(rows()) == 15

    @pytest.mark.long
    def test_what_a_worker_could_not_commit_is_committed_by_the_next(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patch:  # as if it was killed between the two
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"])
            data = step("orders", day="2026-01-01", rows=3)
            queue.add_and_wait("spark.python", data, timeout=timedelta(seconds=60))
            first.stop()
        assert rows() == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"])
        eventually(lambda: len(rows()) == 3, timeout=30)


def step(function: str, **arguments: Any) -> Any:
    return {"callable": f"iceberg_steps:{function}", "arguments": arguments}
