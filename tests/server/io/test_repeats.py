"""A connection that drops in the middle of a call: what is safe to repeat is repeated, nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec, FlowState, Queue
from glidemq_orchestrate.errors import ConnectionFailed, OutcomeUnknown
from glidemq_orchestrate.settings import ConnectionSettings
from tests.builders import node
from tests.server.cutting import Cuts, Moment, cutting

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients

LONG = timedelta(seconds=30)
BOTH: list[Moment] = ["before", "after"]


@pytest.fixture
def through(url: str) -> Iterator[tuple[str, Cuts]]:
    with cutting(url) as found:
        yield found


@pytest.mark.parametrize("moment", BOTH)
@pytest.mark.parametrize("call", ["gmo_grow", "gmo_flow_status", "HMGET"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_connection_that_drops_inside_map_over_fails_no_node(  # noqa: PLR0917  fixtures
    flows: FlowProducer,
    through: tuple[str, Cuts],
    run_worker: RunWorker,
    call: str,
    moment: Moment,
    kind: str,
) -> None:
    address, cuts = through

    def plain(ctx: Any) -> Any:
        if ctx.node == "split":
            cuts.at(call, moment, times=2)
            ctx.flow.map_over(node("item"), range(60), before=["total"])
        return len(ctx.inputs)

    async def awaiting(ctx: Any) -> Any:
        if ctx.node == "split":
            cuts.at(call, moment, times=2)
            await ctx.flow.map_over_async(node("item"), range(60), before=["total"])
        return len(ctx.inputs)

    flow = flows.submit(FlowSpec("n", [node("split"), node("total", "split")]), flow_id="f")
    run_worker(["etl"], {"work": plain if kind == "plain" else awaiting}, address)
    outcome = flow.wait(timeout=LONG)
    assert (outcome.status.state, outcome.status.completed, cuts.made) == (FlowState.COMPLETED, 62, 2)
    assert outcome.results["total"] == 61
    assert {status.attempts for status in flow.nodes()} == {1}


@pytest.mark.parametrize("moment", BOTH)
@pytest.mark.parametrize("call", ["gmo_stage_flow", "gmo_start_flow", "gmo_flow_status"])
def test_a_submission_survives_a_connection_that_drops(
    twins: Clients, through: tuple[str, Cuts], call: str, moment: Moment
) -> None:
    address, cuts = through
    flows = twins.flows(url=address)
    twins.do(flows.list())
    cuts.at(call, moment)
    flow = twins.do(flows.submit(FlowSpec("n", [node("a"), node("b", "a")]), flow_id="f"))
    assert twins.do(flow.status()).total == 2
    assert cuts.made == 1


@pytest.mark.parametrize("moment", BOTH)
def test_a_read_is_repeated_and_an_addition_is_not(
    twins: Clients, through: tuple[str, Cuts], moment: Moment
) -> None:
    address, cuts = through
    queue = twins.queue(url=address)
    job_id = twins.do(queue.add("work", 1))
    cuts.at("HMGET", moment, times=3)
    assert twins.do(queue.get_job(job_id)).data == 1
    assert cuts.made == 3
    cuts.at("glidemq_addJob", moment)
    with pytest.raises(OutcomeUnknown):
        twins.do(queue.add("work", 2))
    assert len(twins.do(queue.search())) == (1 if moment == "before" else 2)


def test_repeating_ends(twins: Clients, through: tuple[str, Cuts]) -> None:
    address, cuts = through
    queue = twins.queue(url=address)
    twins.do(queue.add("work", 1))
    cuts.at("HMGET", "before", times=99)
    with pytest.raises(OutcomeUnknown):
        twins.do(queue.get_job("1"))
    assert cuts.made == 4


def test_a_server_that_never_answered_is_not_tried_again() -> None:
    began = time.monotonic()
    with Queue("etl", "valkey://127.0.0.1:1") as queue, pytest.raises(ConnectionFailed):
        queue.get_job("1")
    assert time.monotonic() - began < 0.5


def test_a_server_that_is_slow_is_not_asked_again(url: str, redis_client: Any) -> None:
    with Queue("etl", ConnectionSettings(url, socket_timeout=0.3)) as queue:
        job_id = queue.add("work")
        redis_client.execute_command("CLIENT", "PAUSE", "1500", "ALL")
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            queue.get_job(job_id)
        assert time.monotonic() - began < 0.6
        redis_client.execute_command("CLIENT", "UNPAUSE")
        assert queue.get_job(job_id).id == job_id
