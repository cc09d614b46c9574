"""What retries and restarts make of the ends of nodes."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Context,
    Dependency,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    Queue,
    RetryLater,
    Rule,
    Suspend,
    Unrecoverable,
)
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.portable import node_jobs
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.job_hash import OF_ONE_RUN
from glidemq_orchestrate.wire.call import ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand


class TestRetries:
    def test_what_a_failure_had_decided_is_decided_again(self, flows: FlowProducer, work: Work) -> None:
        """Skips and failures because of it are undone; what ran although it had failed stays."""
        work.ends["a"] = "failed"
        nodes = [
            node("a"),
            node("completed.kept", Dependency("a", "ignore")),
            node("on-failure", "a", rule=Rule.ONE_FAILED),
            node("on-success", "a"),
            node("skip-then-run", Dependency("a", "skip")),
            node("completed.done", "a", "completed.kept", rule=Rule.ALL_DONE),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow) == {
            "a": "failed",
            "completed.kept": "completed",
            "on-failure": "completed",
            "on-success": "failed",
            "skip-then-run": "skipped",
            "completed.done": "completed",
        }
        work.ends["a"] = "completed"
        work.ran.clear()
        assert flow.retry_failed() == "running"
        status = flow.wait(timeout=LONG).status
        assert sorted(work.ran) == ["a", "on-success", "skip-then-run"]
        assert set(states(flow).values()) == {"completed"}
        assert (status.completed, status.failed, status.skipped) == (6, 0, 0)

    def test_a_skip_by_choice_stays(self, flows: FlowProducer, work: Work) -> None:
        work.ends["a"] = "failed"
        nodes = [node("a"), node("skipped.1"), node("d", "a", "skipped.1"), node("e", "d")]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow)["d"] in {"failed", "skipped"}  # whichever came first
        work.ends["a"] = "completed"
        flow.retry_failed()
        status = flow.wait(timeout=LONG).status
        assert states(flow) == {"a": "completed", "skipped.1": "skipped", "d": "skipped", "e": "skipped"}
        assert status.state == "completed"
        assert work.ran.count("skipped.1") == 1

    @pytest.mark.parametrize("width", [3, 120])
    def test_an_ignored_failure_that_is_run_again_is_waited_for(
        self, width: int, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        """The notices of the first run must not release them before the second has ended."""
        work.ends |= {"a": "failed"} | {f"d{n}": "failed" for n in range(width)}
        nodes = [node("a", on_failure="ignore"), *(node(f"d{n}", "a") for n in range(width))]
        flow = flows.submit(FlowSpec("n", nodes))
        assert flow.wait(timeout=LONG).status.failed == width + 1
        work.ends.clear()
        work.ends |= dict.fromkeys(["a", *(f"d{n}" for n in range(width))], "completed")
        work.held["a"] = threading.Event()
        work.ran.clear()
        flow.retry_failed()
        eventually(lambda: work.ran == ["a"])
        assert set(states(flow).values()) == {"active", "waiting-children"}
        work.held["a"].set()
        assert flow.wait(timeout=LONG).status.completed == width + 1


class TestRestarts:
    def test_everything_runs_again(self, flows: FlowProducer, work: Work) -> None:
        nodes = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", rule="all_done")]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        flow.wait(timeout=LONG)
        assert flow.restart() == "running"
        outcome = flow.wait(timeout=LONG)
        assert sorted(work.ran) == sorted("abcd" * 2)
        assert work.ran[4] == "a"
        assert outcome.status.generation == 1
        assert outcome.status.completed == 4
        assert work.inputs["d"] == {"b": "b!", "c": "c!"}

    def test_a_flow_that_runs_is_cancelled_first(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        work.held["a"] = threading.Event()
        flow = flows.submit(FlowSpec("n", [node("a"), node("b", "a")]))
        eventually(lambda: work.ran == ["a"])
        assert flow.restart() == "running"
        assert flow.generation == flow.status().generation == 1
        work.held.pop("a").set()
        assert flow.wait(timeout=LONG).status.completed == 2
        first, _ = flow.history()
        assert (first.state, first.reason, first.failed) == ("cancelled", "generation 1 began", 2)

    @pytest.mark.parametrize("end", ["completed", "failed"])
    def test_a_submission_may_ask_for_it(self, end: str, flows: FlowProducer, work: Work) -> None:
        work.ends["a"] = end
        spec = FlowSpec("n", [node("a"), node("b", "a")])
        flows.submit(spec, flow_id="f").wait(timeout=LONG)
        work.ends["a"] = "completed"
        again = flows.submit(spec, flow_id="f", on_existing="restart")
        assert again.wait(timeout=LONG).status.state == "completed"
        assert work.ran.count("a") == 2

    def test_what_running_nodes_added_is_added_again(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        sizes = [70, 2]
        ran: list[str] = []

        def grow(ctx: Any) -> None:
            template = FlowNode("part", queue="etl", job="part")
            ctx.flow.map_over(template, list(range(sizes[len(ran) > 0])), before=["end"])

        def part(ctx: Any) -> str:
            ran.append(ctx.node)
            return str(ctx.node)

        run_worker(["etl"], {"grow": grow, "part": part}, concurrency=4)
        nodes = [node("grow", job="grow"), node("end", "grow", job="part")]
        flow = flows.submit(FlowSpec("n", nodes))
        assert flow.wait(timeout=LONG).status.total == 72
        ran_before = len(ran)
        flow.restart()
        status = flow.wait(timeout=LONG).status
        assert (status.total, status.completed) == (4, 4)
        assert sorted(ran[ran_before:]) == ["end", "part[0]", "part[1]"]
        found = {one.name: one.after for one in flow.nodes()}
        assert sorted(found) == ["end", "grow", "part[0]", "part[1]"]
        assert set(found["end"]) == {"grow", "part[0]", "part[1]"}

    @pytest.mark.long
    def test_a_large_flow_restarts_in_slices(self, flows: FlowProducer, work: Work) -> None:
        names = [f"n{n}" for n in range(400)]
        nodes = [*map(node, names), node("end", *names), *(node(f"o{n}", "end") for n in range(400))]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        flow.restart()
        assert flow.wait(timeout=LONG).status.completed == 801
        assert work.ran.index("end", 801) > 801 + 399
        assert len(work.ran) == 1602


@pytest.mark.parametrize("reach", REACHES.values(), ids=list(REACHES))
@pytest.mark.parametrize("how", ["restart", "retry_failed"])
def test_an_approval_of_the_last_run_does_not_count(  # noqa: PLR0917  fixtures
    reach: Reach, how: str, flows: FlowProducer, queue: Queue, hand: Hand, run_worker: RunWorker,
    eventually: Eventually, redis_client: Any,
) -> None:  # fmt: skip
    seen: list[int] = []

    def approve(ctx: Context) -> None:
        seen.append(len(ctx.signals))
        if not ctx.signals:
            raise Suspend("an approval")
        if how == "retry_failed" and len(seen) == 2:
            raise Unrecoverable("later")

    run_worker(["etl"], {"approve": approve})
    spec = check_flow(FlowSpec("n", [FlowNode("a", queue="etl", job="approve")]))
    hand.run(submit_flow("glide", spec, "f", "attach", SystemClock(), reach=reach))
    flow = flows.get("f")
    for _ in range(2):
        (job,) = eventually(lambda: queue.get_jobs(JobState.SUSPENDED))
        assert queue.signal(job.id, "go")
        flow.wait(timeout=LONG)
        getattr(flow, how)()
    assert seen[:4] == [0, 1, 0, 1]


@pytest.mark.parametrize("reach", REACHES.values(), ids=list(REACHES))
@pytest.mark.parametrize("delay_ms", [0, 30])
def test_a_wait_that_the_last_run_asked_for_does_not_delay_the_next(  # noqa: PLR0917  fixtures
    reach: Reach, delay_ms: int, flows: FlowProducer, hand: Hand, run_worker: RunWorker, redis_client: Any
) -> None:
    def fail(_: Context) -> None:
        runs.append("")
        if len(runs) % 2:
            raise RetryLater(timedelta(milliseconds=250), counts=False)
        raise ValueError("no")

    runs: list[str] = []
    options = JobOptions(delay=timedelta(milliseconds=delay_ms))
    spec = check_flow(FlowSpec("n", [FlowNode("a", queue="etl", job="fail", options=options)]))
    hand.run(submit_flow("glide", spec, "f", "attach", SystemClock(), reach=reach))
    flow = flows.get("f")
    for _ in range(2):
        running = run_worker(["etl"], {"fail": fail})
        assert flow.wait(timeout=LONG).status.failed == 1
        running.stop()
        assert int(redis_client.hget("glide:{etl}:job:f~a", "delay")) in range(31, 251)
        flow.retry_failed()
        assert redis_client.hget("glide:{etl}:job:f~a", "delay") == str(delay_ms)


def test_with_and_without_functions_a_node_forgets_the_same(hand: Hand, redis_client: Any) -> None:
    queue = QueueKeys("glide", "etl")
    for job_id in ("1", "2"):
        fields = dict.fromkeys(OF_ONE_RUN, "7") | {
            "state": "failed",
            "name": "work",
            "opts": "{}",
            "delay": "0",
        }
        redis_client.hset(queue.job(job_id), mapping=fields)
        redis_client.rpush(queue.signals(job_id), "{}")
        redis_client.zadd(queue.key("failed"), {job_id: 1})
    hand.run(ask(node_jobs.run_again(queue, "1", 3, 5)))
    hand.run(ask_all(node_jobs.reset(queue, "2", 3)))
    first, second = (redis_client.hgetall(queue.job(job_id)) for job_id in ("1", "2"))
    assert first == second == {
        "state": "waiting-children", "name": "work", "opts": "{}", "delay": "0", "gmo:round": "3",
        "attemptsMade": "0", "failedReason": "", "finishedOn": "",
    }  # fmt: skip
    assert redis_client.smembers(queue.deps("1")) == redis_client.smembers(queue.deps("2"))
    assert not redis_client.keys("glide:{etl}:signals:*")
    assert not redis_client.exists(queue.key("failed"))


def test_both_lists_of_what_is_forgotten_are_one() -> None:
    part = Path(__file__).parents[3] / "lua" / "glidemq_orchestrate" / "parts" / "fresh.lua"
    listed = re.search(r"OF_ONE_RUN = \{(.*?)\}", part.read_text(), re.DOTALL)
    assert listed
    assert tuple(re.findall(r"'([^']+)'", listed[1])) == OF_ONE_RUN
