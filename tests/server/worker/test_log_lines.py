"""Nothing that is stored can forge a line of a worker's log, whatever the program logs with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.worker.services.service import logger

if TYPE_CHECKING:
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


def test_a_worker_without_handlers_warns_when_it_starts(
    url: str, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    run_worker(["etl"], {}, url=url)

    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "has no handlers, so it runs no job. Fix: register functions" in warning.getMessage()
