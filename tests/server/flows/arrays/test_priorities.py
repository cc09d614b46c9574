"""Arrays with a priority, beside jobs and other arrays."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conftest import Eventually, RunWorker

ORDER = "glide:{etl}:gmo:array-priorities"


@pytest.fixture
def order_of(flows: FlowProducer, queue: Queue, run_worker: RunWorker, eventually: Eventually) -> Any:
    """Submits nodes, adds jobs and runs all of them one by one; returns how often each ran, in order."""

    def run(nodes: list[FlowNode], jobs: Sequence[int] = (), **settings: Any) -> list[tuple[str, int]]:
        seen: list[str] = []
        names = [*(node.name for node in nodes), *(f"job-{priority}" for priority in jobs)]
        flow = flows.submit(FlowSpec("f", nodes, queue="etl", **settings), flow_id="x")
        ids = [queue.add(f"job-{priority}", priority=priority) for priority in jobs]

        def noting(name: str) -> Callable[[Context], None]:
            return lambda ctx: seen.append(name)

        run_worker(["etl"], {name: noting(name) for name in names}, concurrency=1, prefetch=0)
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
        eventually(lambda: all(state is JobState.COMPLETED for state in queue.states(ids)))
        return [(name, len(list(runs))) for name, runs in itertools.groupby(seen)]

    return run


def array(name: str, priority: int = 0, size: int = 20) -> ArrayNode:
    return ArrayNode(name, over=range(size), priority=priority)


def test_arrays_run_in_the_order_of_their_priorities(order_of: Any, redis_client: Any) -> None:
    order = order_of([array("plain"), array("third", 3), array("second", 2), array("also", 2, 5)])
    assert [name for name, _ in order if name != "also"][-2:] == ["third", "plain"]
    assert {name for name, _ in order[:-2]} == {"second", "also"}, "they take turns"
    assert len(order) > 4
    assert redis_client.exists(ORDER) == 0


def test_a_priority_of_the_flow_is_that_of_its_arrays(order_of: Any) -> None:
    assert order_of([array("a"), array("b", 1)], priority=7) == [("b", 20), ("a", 20)]


def test_jobs_and_arrays_with_a_priority_run_in_its_order(order_of: Any) -> None:
    order = order_of([array("a", 5), array("plain")], [0, 9, 9, 1, 5])
    names = [name for name, _ in order]
    assert order[0] == ("job-1", 1)
    assert order[names.index("job-9")] == ("job-9", 2)
    assert set(names[1 : names.index("job-9")]) == {"a", "job-5"}, "those of the same priority take turns"
    assert set(names[names.index("job-9") + 1 :]) == {"plain", "job-0"}


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_an_interrupted_array_was_in_no_list(
    flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually, end: str
) -> None:
    """Else a job from the list of priorities would no longer count for the limit of the queue."""
    redis_client.set("glide:{etl}:list-active", 3)  # as with three such jobs of other workers
    spec = FlowSpec("f", [array("a", 5)], queue="etl")
    flow = flows.submit(spec, flow_id="x")
    eventually(lambda: flow.node("a").state is JobState.ACTIVE)
    if end == "cancel":
        flow.cancel("enough")
        run_worker(["other"], {})
    else:
        run_worker(["etl"], {"a": lambda ctx: 1 / 0})
    assert flow.wait(timeout=30).state is not FlowState.COMPLETED
    assert redis_client.get("glide:{etl}:list-active") == "3"
    assert redis_client.exists(ORDER) == 0
