"""Nodes without dependencies, between the start of their flow and their release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.flows.staged.submit import start_flow
from tests.server.gmo.flow_runs import ETL

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ROOTS = "glide:{etl}:gmo:flow:f:roots"
STREAM = "glide:{etl}:stream"


def ready(bench: Bench) -> list[str]:
    return [fields["jobId"] for _, fields in bench.client.xrange(STREAM)]


def test_a_root_that_gets_a_dependency_before_its_release_waits_for_it(bench: Bench, node: Any) -> None:
    """A Node client may add one to any job that waits."""
    nodes = node("a"), node("b")
    bench.call(bench.stage(*nodes))
    bench.client.hset("glide:{etl}:job:child", mapping={"id": "child", "state": "delayed"})
    names = "job:child", "parents:child", "deps:f~a", "job:f~a", "stream", "events"
    keys = [f"glide:{{etl}}:{name}" for name in names]
    assert (
        bench.raw("glidemq_registerParent", keys, "child", "f~a", "glide:{etl}", "glide:{etl}:child") == "ok"
    )
    bench.call(start_flow(ETL, "f", bench.digest(*nodes), bench.now))
    assert ready(bench) == ["f~b"]
