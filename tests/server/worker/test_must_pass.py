"""Checks in a flow: a job that must pass fails by what its handler returns."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, Handlers, JobOptions, Queue

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")

LONG = timedelta(seconds=30)
CHECK = JobOptions(attempts=3, must_pass=True)


def spec(options: JobOptions = CHECK) -> FlowSpec:
    return FlowSpec(
        "checked",
        [
            FlowNode("load", queue="etl", job="step"),
            FlowNode("check", queue="etl", job="check", after=["load"], options=options),
            FlowNode("report", queue="etl", job="step", after=["check"]),
        ],
    )


class Check:
    """Handlers that count their runs; the check returns what it is told to."""

    def __init__(self, result: Any) -> None:
        self.result, self.runs = result, Counter[str]()

    def __call__(self, ctx: Context) -> Any:
        self.runs[str(ctx.node)] += 1
        return self.result if ctx.name == "check" else None


def test_what_follows_a_check_that_does_not_pass_does_not_run(url: str, run_worker: RunWorker) -> None:
    check = Check({"passed": False, "rows": 3})
    run_worker(["etl"], {"step": check, "check": check})
    with FlowProducer(url) as flows:
        flow = flows.submit(spec(), flow_id="f")
        assert flow.wait(timeout=LONG).status.state == "failed"
        node = flow.node("check")
        assert (node.state, node.reason, node.progress) == ("failed", "the check did not pass", check.result)
        assert check.runs == {"load": 1, "check": 1}, "a check has one attempt"
        assert flow.node("report").reason == "upstream failed: check"
        check.result = True
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state == "completed"
        assert check.runs == {"load": 1, "check": 2, "report": 1}
        assert flow.results()["check"] is True


def test_a_check_that_passes_and_one_that_need_not(url: str, run_worker: RunWorker) -> None:
    check = Check({"checks": [{"passed": False, "severity": "WARN"}]})
    run_worker(["etl"], {"step": check, "check": check})
    with FlowProducer(url) as flows:
        assert flows.submit(spec()).wait(timeout=LONG).status.state == "completed"
        check.result = False
        assert flows.submit(spec(JobOptions())).wait(timeout=LONG).status.state == "completed"


def test_a_check_that_becomes_one_runs_again(url: str, run_worker: RunWorker) -> None:
    check = Check(False)
    run_worker(["etl"], {"step": check, "check": check})
    with FlowProducer(url) as flows:
        flows.submit(spec(JobOptions()), flow_id="f").wait(timeout=LONG)
        plan = flows.plan(spec(), flow_id="f")
        assert plan.runs == {"check": "changed: options", "report": "follows check"}


def test_each_job_of_a_batch_is_judged_by_itself(
    url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers = Handlers()

    @handlers.batch_handler("check", size=2, wait=timedelta(seconds=1))
    def check(contexts: list[Context]) -> list[Any]:
        return [ctx.data for ctx in contexts]

    run_worker(["etl"], handlers)
    with Queue("etl", url) as queue:
        ids = [queue.add("check", passed, options=CHECK) for passed in (True, False)]
        eventually(lambda: all(queue.get_job(job_id).state in ("completed", "failed") for job_id in ids))
        good, bad = (queue.get_job(job_id) for job_id in ids)
        assert (good.state, good.result) == ("completed", True)
        assert (bad.state, bad.failed_reason) == ("failed", "the check did not pass")
