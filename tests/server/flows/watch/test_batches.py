"""Watching in batches: quiet ones too, and the deadlines of a flow that nobody but its reader looks after."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import AsyncFlowProducer, FlowNode, FlowProducer, FlowSpec, Owner
from glidemq_orchestrate.errors import ConfigurationError, HandlerNotFound, QueueNotServed

if TYPE_CHECKING:
    from tests.conftest import RunWorker

pytestmark = pytest.mark.usefixtures("path")

SHORT, LONG = timedelta(milliseconds=200), timedelta(seconds=30)


def spec(**kw: Any) -> FlowSpec:
    return FlowSpec(
        "n",
        [FlowNode("a", queue="etl", job="step"), FlowNode("b", queue="etl", job="step", after=["a"])],
        **kw,
    )


def names(batches: Any) -> list[str]:
    return [getattr(change, "node", "end") for batch in batches for change in batch]


def test_a_batch_has_what_was_read_together(url: str, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"step": lambda _: 1})
    with FlowProducer(url) as flows:
        flow = flows.submit(spec())
        flow.wait(timeout=LONG)
        batches = list(flow.watch_batches(timeout=LONG))
        assert [names([batch]) for batch in batches] == [["a", "b", "end"]]
        assert names(flow.watch_batches(after=batches[0][0].position, timeout=LONG)) == ["b", "end"]
        assert list(flow.watch_batches(after=batches[0][-1].position, timeout=LONG)) == []
        with pytest.raises(ConfigurationError):
            flow.watch_batches(after="nonsense")


def test_an_empty_batch_comes_when_nothing_happens(url: str) -> None:
    with FlowProducer(url) as flows:
        batches = flows.submit(spec()).watch_batches(rest=SHORT, timeout=LONG)
        assert names([next(batches)]) == ["a"]
        assert [next(batches), next(batches)] == [[], []]

    async def read() -> list[Any]:
        async with AsyncFlowProducer(url) as flows:
            flow = await flows.submit(spec())
            found = []
            async for batch in flow.watch_batches(rest=SHORT, timeout=LONG):
                found.append(batch)
                if len(found) == 2:
                    return found
        return found

    first, second = asyncio.run(read())
    assert (names([first]), second) == (["a"], [])


@pytest.mark.parametrize("limit", ["deadline", "queue_timeout"])
def test_a_reader_holds_the_limits_of_a_flow_that_nobody_serves(url: str, limit: str) -> None:
    with FlowProducer(url) as flows:
        flow = flows.submit(spec(**{limit: timedelta(seconds=1)}))
        *_, end = flow.watch(timeout=LONG)
        assert end.state == "failed"
        assert ("deadline" if limit == "deadline" else "no worker") in end.reason


def test_the_owners_of_a_flow(url: str) -> None:
    with FlowProducer(url) as flows:
        flow = flows.submit(spec(), flow_id="f", owner=Owner("ben"))
        flows.get("f", owner=Owner("ada")).renew()
        assert flow.owners() == ["ada", "ben"]
        flow.cancel()
        assert flow.owners() == []
        assert flows.submit(spec()).owners() == []

    async def read() -> Any:
        async with AsyncFlowProducer(url) as flows:
            return await (await flows.submit(spec(), owner=Owner("eve"))).owners()

    assert asyncio.run(read()) == ["eve"]


def test_whether_workers_can_run_jobs(url: str, run_worker: RunWorker) -> None:
    with FlowProducer(url) as flows:
        with pytest.raises(QueueNotServed) as unserved:
            flows.check_workers(spec())
        assert unserved.value.queues == ["etl"]
        run_worker(["etl"], {"step": lambda _: 1})
        flows.check_workers(spec())
        flows.check_workers({"etl": ["step"]})
        with pytest.raises(HandlerNotFound) as missing:
            flows.check_workers({"etl": ["step", "other"]})
        assert missing.value.missing == {"etl": ["other"]}
        with pytest.raises(ConfigurationError):
            flows.check_workers({"a:b": []})
