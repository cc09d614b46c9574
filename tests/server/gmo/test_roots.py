"""Nodes without dependencies, between the start of their flow and their release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.staged import submit as staged_submit
from glidemq_orchestrate.flows.staged.submit import stage_flow, start_flow
from tests.server.gmo.flow_runs import ETL, run_all

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


def test_a_node_whose_last_piece_arrives_first_is_no_root(
    bench: Bench, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the calls before it were refused, and sent again: its last piece has no dependency."""
    monkeypatch.setattr(staged_submit, "CHUNK_EDGES", 2)
    nodes = node("a"), node("b"), node("j", "a", "b"), node("x", "j"), node("y", "j")
    checked = check_flow(FlowSpec("n", nodes))
    parts = staged_submit.chunks(checked.nodes, 1)
    for call in reversed(list(stage_flow(ETL, "f", checked, parts, bench.now))):
        bench.call(call)
    bench.call(start_flow(ETL, "f", checked.digest, bench.now))
    assert sorted(ready(bench)) == ["f~a", "f~b"]
    assert run_all(bench)[2:] in (["j", "x", "y"], ["j", "y", "x"])
