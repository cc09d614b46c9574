"""Elements of arrays whose worker is killed."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import ArrayNode, FlowProducer, FlowSpec
from tests.processes import spawned

if TYPE_CHECKING:
    from pathlib import Path

KILLER = """
    import os, signal, sys
    from datetime import timedelta
    from glidemq_orchestrate import Worker

    worker = Worker(sys.argv[1], queues=["etl"], lease=timedelta(seconds=1), max_stalled=1)

    @worker.handler("a")
    async def a(ctx):
        with open(sys.argv[2], "a") as file:
            print(ctx.index, file=file)
        if ctx.data == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.index

    worker.run()
"""


@pytest.mark.long  # tests/server/gmo/test_arrays.py has the facts that it follows from
def test_an_element_that_kills_its_worker_fails_alone(flows: FlowProducer, url: str, tmp_path: Path) -> None:
    over = ["kill" if at == 137 else at for at in range(300)]
    flow = flows.submit(FlowSpec("f", [ArrayNode("a", over=over)], queue="etl"), flow_id="x")
    calls = tmp_path / "calls"
    command = [sys.executable, "-c", textwrap.dedent(KILLER), url, str(calls)]
    until = time.monotonic() + 240
    while not flow.status().state.is_terminal:
        assert time.monotonic() < until
        with spawned(command) as process:
            while process.poll() is None and not flow.status().state.is_terminal:
                assert time.monotonic() < until
                time.sleep(0.05)
    counts = flow.array("a").counts()
    assert (counts.completed, counts.failed, counts.running) == (299, 1, 0)
    assert flow.array("a").results() == {at: at for at in range(300) if at != 137}
    (failed,) = flow.array("a").failed()
    assert (failed.index, failed.reason) == (137, "its worker was lost more often than allowed")
    ran = Counter(map(int, calls.read_text().split()))
    assert set(ran) == set(range(300))
    assert max(ran.values()) <= 4
