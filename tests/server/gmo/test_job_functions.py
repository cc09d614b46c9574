"""Our functions about jobs: what they refuse, with nothing changed, and how long the largest slice takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import JobOptions
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.changes import remove_jobs, retry_jobs
from glidemq_orchestrate.wire.call import function

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ID, JOB = "glide:{etl}:id", "glide:{etl}:job:1"
OUTSIDE = ("", "", "", "")

WRONG: list[tuple[str, str, list[Any], str]] = [
    ("gmo_add_jobs", ID, ["x"], "GMO_BAD_CALL"),
    ("gmo_add_jobs", ID, [5, "n"], "GMO_BAD_CALL"),
    ("gmo_add_jobs", JOB, [5, "n", "{}", 1, 0, 0, 0, 0, 0, "", 1, "1"], "GMO_BAD_CALL"),
    ("gmo_remove_jobs", ID, [], "GMO_BAD_CALL"),
    ("gmo_remove_jobs", ID, ["x", "removed", "1", ""], "GMO_BAD_CALL"),
    ("gmo_remove_jobs", ID, [5, "removed", "1"], "GMO_BAD_CALL"),
    ("gmo_remove_jobs", ID, [5, "removed", *["1", ""] * 201], "GMO_BAD_CALL"),
    ("gmo_retry_jobs", ID, ["x", "1"], "GMO_BAD_CALL"),
    ("gmo_retry_jobs", ID, [5, *["1"] * 201], "GMO_BAD_CALL"),
    ("gmo_revoke_job", "glide:{etl}:job:99", [5, "99"], "GMO_JOB_NOT_FOUND"),
    ("gmo_update_job", "glide:{etl}:job:99", [5, "99", "data", "1"], "GMO_JOB_NOT_FOUND"),
    ("gmo_update_job", JOB, [5, "1", "state", "x"], "GMO_BAD_CALL"),
    ("gmo_update_job", JOB, [5, "1", "data"], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, ["x", "1", *OUTSIDE, "{}"], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, "{"], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, "5"], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, "{}", "usage:model"], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, '{"tokens":5}'], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, '{"costs":{"a":"x"}}'], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, '{"totalTokens":null}'], "GMO_BAD_CALL"),
    ("gmo_report_usage", JOB, [5, "1", *OUTSIDE, '{"model":5}'], "GMO_BAD_CALL"),
    ("gmo_report_usage", "glide:{etl}:job:99", [5, "99", *OUTSIDE, "{}"], "GMO_JOB_NOT_FOUND"),
]


def test_an_invalid_call_changes_nothing(bench: Bench) -> None:
    for name, key, args, code in WRONG:
        bench.call(add_job_call(bench.etl, "work", "1", JobOptions(), bench.now))
        assert bench.refused(function(name, [key], args, lambda reply: reply)) == code


def test_a_hundred_removals_list_each_job(bench: Bench) -> None:
    ids = [bench.call(add_job_call(bench.etl, "work", "1", JobOptions(), bench.now)) for _ in range(100)]
    entries = bench.client.xrange("glide:{etl}:stream")
    pairs = [(fields["jobId"], entry_id) for entry_id, fields in entries[:98]]
    unknown = [(ids[98], ""), ("nobody", "")]
    words, elsewhere = bench.call(remove_jobs(bench.etl, [*pairs, *unknown], "removed", bench.now))
    assert (words, elsewhere) == (["removed"] * 98 + ["left", "missing"], [])
    assert bench.job(ids[99])["state"] == "waiting"


def test_the_traces_of_a_missing_job_go(bench: Bench) -> None:
    for name in ("completed", "failed", "scheduled"):
        bench.client.zadd(f"glide:{{etl}}:{name}", {"gone": 1, "other": 2})
    bench.call(remove_jobs(bench.etl, [("gone", "")], "removed", bench.now))
    for name in ("completed", "failed", "scheduled"):
        assert bench.client.zrange(f"glide:{{etl}}:{name}", 0, -1) == ["other"]


def test_an_attempt_of_a_job_that_was_retried_is_stale(bench: Bench) -> None:
    job_id = bench.call(add_job_call(bench.etl, "work", "1", JobOptions(), bench.now))
    bench.begin()
    bench.client.hset(f"glide:{{etl}}:job:{job_id}", "state", "failed")
    assert bench.call(retry_jobs(bench.etl, [job_id], bench.now)) == ["retried"]
    assert "gmo:token" not in bench.job(job_id)
