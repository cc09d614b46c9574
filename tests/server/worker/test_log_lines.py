"""Nothing that is stored can forge a line of a worker's log, whatever the program logs with."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Backoff,
    Context,
    FlowProducer,
    FlowSpec,
    Middleware,
    Skip,
    Unrecoverable,
)
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import JobFailed
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.worker import Handlers, JobEvent
from glidemq_orchestrate.worker.handlers.log import MAX_LINES_A_SECOND, JobLog
from glidemq_orchestrate.worker.services.service import logger
from tests.builders import node

if TYPE_CHECKING:
    from glidemq_orchestrate import Queue
    from tests.conftest import Eventually, RunWorker

FORGED = "\nCRITICAL all jobs deleted\x1b[2J\u2028\x85"


def fail(ctx: Any) -> None:
    raise ValueError(f"no row{FORGED}")


def test_ids_and_names_with_line_ends_stay_in_their_line(
    url: str,
    redis_client: Any,
    run_worker: RunWorker,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="glidemq_orchestrate")
    run_worker(["etl"], {"work": lambda ctx: 1, "bad": fail, f"bad{FORGED}": fail}, url=url)
    jobs = {
        f"a{FORGED}": {"name": "work"},
        f"b{FORGED}": {"name": "bad"},
        f"c{FORGED}": {"name": f"unknown{FORGED}"},
        "d": {"name": f"bad{FORGED}"},
        "e": {"name": "work", "data": "{" + FORGED},
        "f": {"name": "work", "opts": "{" + FORGED},
    }
    for job_id, fields in jobs.items():
        stored = {"id": job_id, "data": "1", "opts": "{}", "timestamp": "1", "state": "waiting"}
        redis_client.hset(f"glide:{{etl}}:job:{job_id}", mapping=stored | fields)
    for job_id in [*jobs, f"gone{FORGED}"]:
        redis_client.xadd("glide:{etl}:stream", {"jobId": job_id})
    eventually(
        lambda: all(
            redis_client.hget(f"glide:{{etl}}:job:{job_id}", "state") in ("completed", "failed")
            for job_id in jobs
        ),
        timeout=30,
    )

    def is_told(job: str) -> bool:
        return any(rf"job {job}\nCRITICAL all" in line for line in caplog.messages)

    eventually(lambda: is_told("b") and is_told("c"), timeout=10)  # a line about an end is written after it
    assert [line for line in caplog.messages if not line.isprintable()] == []
    raised = next(record for record in caplog.records if "raised" in record.getMessage())
    assert raised.job_id is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["%s", "%r"])
def test_an_error_is_one_line_and_keeps_its_form(caplog: pytest.LogCaptureFixture, how: str) -> None:
    error = ValueError("a\nb")
    logger.warning(f"it failed: {how}, %d times, %s", error, 3, "\tplain")
    expected = {"%s": "it failed: a\\nb, 3 times, \tplain", "%r": f"it failed: {error!r}, 3 times, \tplain"}
    assert caplog.messages == [expected[how]]


def fails(_ctx: Any) -> None:
    raise ValueError("no such month")


@pytest.mark.parametrize("process", [False, True])
def test_the_log_shows_the_frames_of_a_handler_not_ours_above_it(
    queue: Queue, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, *, process: bool
) -> None:
    handlers = Handlers()
    handlers.handler("fails", process=process)(fails)
    run_worker(["etl"], handlers)
    for level, is_whole in ((logging.INFO, False), (logging.DEBUG, True)):
        caplog.set_level(level, logger="glidemq_orchestrate.worker")
        with pytest.raises(JobFailed):
            queue.add_and_wait("fails")
        (record,) = [one for one in caplog.records if "attempt 1 raised" in one.getMessage()]
        shown = logging.Formatter().format(record)
        assert 'raise ValueError("no such month")' in shown
        assert ("executor.py" in shown) is is_whole
        caplog.clear()


def test_a_worker_without_handlers_warns_when_it_starts(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    run_worker(["etl"], {}, url=url)

    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "has no handlers, so it runs no job. Fix: register functions" in warning.getMessage()


def test_a_worker_with_other_code_under_the_same_name_warns_when_it_starts(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_ctx: Any) -> None:
        raise ValueError("no such year")

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]

    run_worker(["etl"], {"clean": fail, "load": fails}, url=url)
    run_worker(["etl"], {"clean": fail, "extract": fails}, url=url)
    run_worker(["other"], {"clean": fails}, url=url)
    assert warnings() == []
    run_worker(["etl"], {"clean": fails, "load": fails}, url=url)
    here = "test_a_worker_with_other_code_under_the_same_name_warns_when_it_starts.<locals>.fails"
    lines = warnings()
    assert len(lines) == 2
    for line in lines:
        assert re.match(
            r"queue etl: worker gmo-worker-\S+ on \S+ \(pid \d+\) has other code for handler clean ", line
        )
        assert (
            f"({__name__}:{here} here, {__name__}:fail there), and runs some of the jobs. Fix: stop" in line
        )


def test_each_attempt_ends_with_a_line_that_names_node_flow_outcome_and_seconds(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level(logging.INFO, logger="glidemq_orchestrate")

    def skip(ctx: Any) -> None:
        raise Skip("no new rows")

    def flaky(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("reset")

    run_worker(["etl"], {"work": lambda ctx: 1, "skip": skip, "flaky": flaky, "bad": fail}, url=url)
    nodes = [
        node("good"),
        node("empty", job="skip"),
        node("shaky", job="flaky", attempts=2, backoff=Backoff(delay=0.01)),
        node("broken", job="bad"),
    ]
    with FlowProducer(url) as flows:
        flows.submit(FlowSpec("nightly", nodes), flow_id="n1")

    expected = (
        r"node good of flow n1: completed in \d+\.\d\d s",
        r"node empty of flow n1: skipped after \d+\.\d\d s: no new rows",
        (
            r"node shaky of flow n1: attempt 1 failed after \d+\.\d\d s, runs again in 0\.01 s: "
            "ConnectionError: reset"
        ),
        r"node shaky of flow n1: completed in \d+\.\d\d s",
        r"node broken of flow n1: failed after \d+\.\d\d s \(attempt 1\): ValueError: no row.*",
    )

    def missing() -> list[str]:
        return [line for line in expected if not any(re.fullmatch(line, one) for one in caplog.messages)]

    eventually(lambda: not missing(), timeout=10)
    record = next(record for record in caplog.records if record.getMessage().startswith("node good"))
    fields = {
        name: record.__dict__[name] for name in ("action", "queue", "handler", "flow_id", "node", "attempt")
    }
    assert fields == {
        "action": "job_completed", "queue": "etl", "handler": "work", "flow_id": "n1", "node": "good",
        "attempt": 1,
    }  # fmt: skip
    assert record.__dict__["seconds"] >= 0


def test_a_rush_of_jobs_is_counted_instead_of_flooding_the_log(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level(logging.INFO, logger="glidemq_orchestrate")
    count = 10 * MAX_LINES_A_SECOND
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("rush", [node(f"n{number}") for number in range(count)]))
        run_worker(["etl"], {"work": lambda ctx: 1}, url=url, concurrency=50)
        assert flow.wait(timeout=60).state == "completed"

    def lines() -> int:
        return sum(": completed in" in line for line in caplog.messages)

    def counted() -> int:
        return sum(getattr(record, "jobs", 0) for record in caplog.records)

    eventually(lambda: lines() + counted() == count, timeout=10)
    assert counted() > 0


def test_what_happens_to_many_elements_at_once_is_counted_too(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level(logging.INFO, logger="glidemq_orchestrate")
    count = 10 * MAX_LINES_A_SECOND

    def are_ended(words: str, total: int) -> bool:
        found = [record for record in caplog.records if words in record.getMessage()]
        counted = [record.jobs for record in found if hasattr(record, "jobs")]
        return bool(counted) and len(found) - len(counted) + sum(counted) == total

    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError(f"no row {ctx.index}")
        raise Unrecoverable("no table")

    with FlowProducer(url) as flows:
        array = ArrayNode("work", over=range(count), attempts=2, backoff=Backoff(delay=0.01))
        flow = flows.submit(FlowSpec("rush", [array], queue="etl"))
        run_worker(["etl"], {"work": work}, url=url, middleware=[Middleware()])
        assert flow.wait(timeout=60).state == "failed"
    eventually(lambda: are_ended(" raised", 2 * count), timeout=10)
    eventually(lambda: are_ended(" failed", 2 * count), timeout=10)


async def test_refused_outcomes_and_starts_after_a_loss_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log, more = JobLog(), 20
    attempt = Attempt.from_wire("etl", "1-1", "token", {"id": "7", "name": "work"})
    for _ in range(MAX_LINES_A_SECOND + more):
        log.verdict(Outcome(attempt, Kind.DONE, "1"), "stale job 7 was removed")
        log.runs_again(attempt)
    log.flush()
    assert Counter(caplog.messages) == {
        "job 7 (work): outcome not accepted: stale job 7 was removed": MAX_LINES_A_SECOND,
        "job 7 (work): runs again after its worker was lost; that costs no attempt": MAX_LINES_A_SECOND,
        f"{more} more outcomes were not accepted (at most {MAX_LINES_A_SECOND} lines a second)": 1,
        f"{more} more run again after a worker was lost (at most {MAX_LINES_A_SECOND} lines a second)": 1,
    }


async def test_a_start_after_a_loss_names_the_element(caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempt.from_wire("etl", "1-1", "token", {"id": "f~a{1}", "name": "work"})
    alone = replace(attempt, flow_id="f", node="a", slice=Slice("f~a", [17], [0]))
    JobLog().runs_again(alone)
    again = "runs again after its worker was lost; that costs no attempt"
    assert caplog.messages == [f"node a[17] of flow f: {again}"]


def test_a_result_that_is_refused_is_not_logged_as_the_reason(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    reasons = list[str]()

    class Listener(Middleware):
        def on_event(self, event: JobEvent) -> None:
            if event.kind == "failed":
                reasons.append(event.reason)

    def grow(ctx: Context) -> str:
        ctx.flow.append([2], to="work")
        return "a secret result"

    with FlowProducer(url) as flows:
        nodes = ArrayNode("work", over=[1]), node("grow", "work", job="grow")
        flow = flows.submit(FlowSpec("f", nodes, queue="etl"), flow_id="x")
        run_worker(["etl"], {"work": lambda ctx: 1, "grow": grow}, url=url, middleware=[Listener()])
        (failed,) = flow.wait(timeout=30).failed
    assert failed.reason == "it cannot add elements: array work has ended"
    refused = "its result was refused; the job has the reason"
    eventually(lambda: reasons == [refused], timeout=10)
    assert any(line.endswith(refused) for line in caplog.messages)
    assert "a secret result" not in caplog.text
