"""Running a flow by hand, call by call, for the tests beside this file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate.flows.generation import FlowRef, flow_status
from glidemq_orchestrate.flows.staged.submit import advance
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench

ETL, SPARK = QueueKeys("glide", "etl"), QueueKeys("glide", "spark")
REF = FlowRef(ETL, "f")


def finish(bench: Bench, attempt: Attempt) -> None:
    """Hand in a result and do what the flow then needs."""
    bench.finish(attempt, f'"{attempt.node}!"')
    bench.hand.run(advance(REF, bench))


def run_all(bench: Bench, limit: int = 10_000) -> list[str]:
    """Run what can be run until nothing can; returns the names in the order in which they ran."""
    ran: list[str] = []
    for queue in [ETL, SPARK] * limit:
        waiting = bench.client.xlen(queue.key("stream"))
        if not waiting:
            if not bench.client.xlen(ETL.key("stream")) + bench.client.xlen(SPARK.key("stream")):
                return ran
            continue
        attempt = bench.begin(queue)
        finish(bench, attempt)
        ran.append(str(attempt.node))
    raise AssertionError("it does not end")


def status(bench: Bench) -> tuple[str, int, int, int]:
    found = bench.call(flow_status(ETL, "f"))
    return str(found.state), found.total, found.completed, found.failed


def leftovers(bench: Bench) -> list[str]:
    return [key for key in bench.client.keys("*") if "gmo:grow" in key or key.endswith(":growing")]
