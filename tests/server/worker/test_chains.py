"""A worker goes from node to node of a chain without a round trip of its own for either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Client, FlowSpec
from tests.builders import node

if TYPE_CHECKING:
    from tests.conftest import RunWorker

STEPS = 100


def test_the_end_of_a_node_fetches_its_dependent_in_the_same_call(
    url: str, redis_client: Any, run_worker: RunWorker
) -> None:
    chain = [node(f"n{at}", *([f"n{at - 1}"] if at else [])) for at in range(STEPS)]
    with Client(url) as client, redis_client.monitor() as monitor:
        flow = client.flows.submit(FlowSpec("chain", chain), flow_id="chain")
        run_worker(["etl"], {"work": lambda _: None}, concurrency=1)
        assert flow.wait(timeout=60).state == "completed"
        redis_client.echo("the end")
        seen = list(iter(lambda: monitor.next_command()["command"], "ECHO the end"))
    exchanges = [command for command in seen if command.startswith("FCALL gmo_finish_and_fetch ")]
    # One more for the first node, and one or two without a job: when the worker starts, when the chain ends.
    assert STEPS < len(exchanges) <= STEPS + 3
