"""What the log of a task says where nothing happens: what waits, why, and until when."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow_provider_glidemq import node_reports
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQJobFailed,
    GlideMQNodeFailed,
)
from airflow_provider_glidemq.node_reports import FIRST, LAST, SHOWN, WaitReasons, in_block, in_lines
from airflow_provider_glidemq.operators.glidemq import flow_id_for

from glidemq_orchestrate import Backoff, FlowNode, FlowSpec, JobOptions, Worker
from glidemq_orchestrate.errors import FailedNode
from glidemq_orchestrate.flows import Wait
from tests.providers.airflow.builders import QUEUE, Valkey, blocking, deferred, fired

FLOW_ID = flow_id_for("d", "t", "r1")
FORGING = "no\n2026-01-01 ERROR all \x1b[31mis lost"

REASONS: list[Exception] = [
    GlideMQFlowFailed("f", [FailedNode("a", "j", FORGING, 1)]),
    GlideMQFlowCancelled("f", FORGING),
    GlideMQJobFailed("q", "j", FORGING),
    GlideMQNodeFailed("a", FORGING),
]


def test_it_looks_when_nothing_has_ended_for_a_while_and_then_less_often() -> None:
    quiet, now, looked = WaitReasons(), 0.0, list[float]()
    while now < 5_000:
        now += 1
        if quiet.is_due(3, now):
            looked.append(now)
    assert looked[:4] == [1 + FIRST, 1 + 3 * FIRST, 1 + 7 * FIRST, 1 + 15 * FIRST]
    assert looked[-1] - looked[-2] == LAST
    assert not quiet.is_due(4, now + 1)
    assert quiet.is_due(4, now + 1 + FIRST), "after a node has ended it looks soon again"


def test_a_line_is_said_once_and_shows_nothing_of_secret_flows() -> None:
    until = datetime(2126, 1, 2, 3, 4, 5, tzinfo=UTC)
    waits = {f"n{number}": Wait(f"for a free worker of queue q{number}") for number in range(SHOWN + 2)}
    waits["n0"] = Wait("for its next attempt (attempt 1 of 3 failed: forged\nline)", until)
    quiet = WaitReasons()
    line = quiet.line(waits)
    assert line.startswith("n0 waits: until 2126-01-0")
    assert "forged\\nline" in line
    assert line.endswith("; 2 more wait")
    assert not quiet.line(waits)
    assert not quiet.line({})
    masked = quiet.line(waits, "f-1")
    assert masked == "7 nodes wait; why is in: glidemq flow show f-1"


def test_nodes_that_wait_for_the_same_are_named_together() -> None:
    waits = {f"n{number}": Wait("its worker has been silent") for number in range(10)}
    assert WaitReasons().line(waits) == "10 nodes wait (n0, n1, n2, ...): its worker has been silent"


def test_what_a_worker_logs_in_one_go_keeps_its_lines_and_forges_none() -> None:
    text = in_lines("failed: Traceback\n  File x\x1b[31m\n2026-01-01 ERROR all is lost")
    assert text.split("\n") == [
        "failed: Traceback",
        "      File x\\x1b[31m",
        "    2026-01-01 ERROR all is lost",
    ]
    assert len(in_lines("x\n" * 100_000)) < 60_000
    forged = "2026-01-01 ERROR all is lost\nNode b had logged:"
    assert in_block([forged, "[b] line"]).split("\n") == [
        "    2026-01-01 ERROR all is lost",
        "        Node b had logged:",
        "    [b] line",
    ]


def test_a_reason_forges_no_line(subtests: pytest.Subtests) -> None:
    for raised in REASONS:
        with subtests.test(raised=raised):
            assert "\n    2026-01-01 ERROR all \\x1b[31mis lost" in str(raised)
            assert FORGING not in str(raised)


@pytest.mark.parametrize("where", ["worker", "trigger"])
async def test_an_operator_tells_that_a_node_is_to_be_tried_again(  # noqa: PLR0917  fixtures
    where: str,
    valkey: Valkey,
    worker: Worker,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(node_reports, "FIRST", 0.3)
    caplog.set_level(logging.INFO)

    @worker.handler("broken")
    def broken(ctx: Any) -> None:
        raise ValueError("month 13 does not exist")

    again = JobOptions(attempts=2, backoff=Backoff("fixed", timedelta(seconds=3)))
    flow = FlowSpec("etl", [FlowNode("load", queue=QUEUE, job="broken", options=again)])
    made = blocking(flow, logging_interval=0.2, require_workers=False)
    if where == "worker":
        with pytest.raises(Exception, match="month 13"):
            await asyncio.to_thread(made.execute, context())
    else:
        trigger = await asyncio.to_thread(deferred, made, context())
        assert (await fired(trigger))["status"] == "failed"
    told = capsys.readouterr().out + caplog.text
    assert "load waits: until " in told
    assert "for its next attempt (attempt 1 of 2 failed: ValueError: month 13 does not exist)" in told
    if where == "worker":
        assert "Node load had logged:\n    attempt 1 failed: Traceback" in told
        assert '    raise ValueError("month 13 does not exist")' in told


def test_an_ignored_failure_is_counted_and_marked() -> None:
    failed = [FailedNode("load", "1", "no space", 3), FailedNode("audit", "2", "late", 1, ignored=True)]
    failed.append(FailedNode("report", "3", "upstream failed: load", 0))
    assert str(GlideMQFlowFailed("f", failed)).splitlines() == [
        "flow f failed: 1 failed, 1 could not run after them, 1 ignored",
        "  load: no space (attempts: 3)",
        "  audit: late (attempts: 1, ignored)",
        "  report: upstream failed: load (attempts: 0)",
    ]
