"""What docs/how-to/troubleshooting.md says about slow Spark steps: each command against a prepared fault.

The fault of a cluster without free capacity is in ``test_standalone.py``.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from tests.command_line import shown_node

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.handler import Handlers
    from tests.conftest import Eventually, RunWorker
    from tests.spark.conftest import Start

STEPS = """
    import time
    from pathlib import Path

    def slow(spark, ctx, *, go):
        def work(number):
            while number == 3 and not Path(go).exists():
                time.sleep(0.05)
            return number
        return spark.sparkContext.parallelize(range(4), 4).map(work).sum()

    def quick(spark, ctx):
        return spark.range(3).count()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_steps.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.delitem(sys.modules, "slow_steps", raising=False)
    return "slow_steps"


def step(name: str, function: str, session: str = "shared", **arguments: Any) -> FlowNode:
    data: Any = {"callable": f"slow_steps:{function}", "arguments": arguments, "session": session}
    return FlowNode(name, queue="spark", job="spark.python", data=data)


@pytest.mark.long
def test_the_progress_of_a_slow_step_shows_its_stages_and_where_to_look(  # noqa: PLR0917  fixtures
    url: str,
    module: str,
    run_worker: RunWorker,
    warm_handlers: Handlers,
    eventually: Eventually,
    tmp_path: Path,
) -> None:
    run_worker(["spark"], warm_handlers, allow_import=[module])
    go = tmp_path / "go"
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", [step("a", "slow", go=str(go))]), flow_id="ID")
        eventually(lambda: '"tasks_done": 3' in shown_node(url, "ID", "a"), 60)
        shown = shown_node(url, "ID", "a")
        assert '"stages": 1' in shown
        assert '"tasks": 4' in shown
        assert '"ui": "http://127.0.0.1:' in shown
        go.touch()
        assert flow.wait(timeout=60).state == "completed"
        assert '"spark_jobs": ' in shown_node(url, "ID", "a")


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment", "module")
@pytest.mark.parametrize("sessions", [2, 3])
def test_a_step_says_when_all_sessions_are_in_use_and_more_of_them_help(
    sessions: int, url: str, start: Start, eventually: Eventually, tmp_path: Path
) -> None:
    words = ("worker", "--app", "glidemq_orchestrate.spark", "--queue", "spark", "--url", url)
    command = (sys.executable, "-m", "glidemq_orchestrate", *words, "--allow-import", "slow_steps")
    start(*command, GLIDEMQ_SPARK_SESSIONS=str(sessions))
    go, text = tmp_path / "go", "all 2 Spark sessions of this worker are in use; waiting for one"
    with FlowProducer(url) as flows:
        holds = FlowSpec("n", [step("a", "slow", "own", go=str(go))])
        holding = flows.submit(holds, flow_id="HOLDS", require_workers=False)
        eventually(lambda: "tasks_done" in shown_node(url, "HOLDS", "a"), 120)
        flow = flows.submit(FlowSpec("n", [step("b", "quick", "own")]), flow_id="ID")
        if sessions == 2:
            eventually(lambda: text in shown_node(url, "ID", "b"), 60)
        else:
            assert flow.wait(timeout=120).state == "completed"
            assert text not in shown_node(url, "ID", "b")
            assert holding.status().state == "running"
        go.touch()
        assert flow.wait(timeout=120).state == "completed"
        assert holding.wait(timeout=120).state == "completed"
