"""Jobs as users see them, read from and written for glide-mq's hashes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate import Backoff, JobOptions, JobState
from glidemq_orchestrate.errors import DecodeError, InvalidJob
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs import Job
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire.codec import pack
from glidemq_orchestrate.wire.stored import moment, read_progress

SECOND = timedelta(seconds=1)

OPTIONS_ON_THE_WIRE: list[tuple[JobOptions, dict[str, Any]]] = [
    (JobOptions(), {}),
    (JobOptions(attempts=1, delay=timedelta(0)), {}),
    (JobOptions(attempts=3), {"attempts": 3}),
    (JobOptions(delay=1.5 * SECOND), {"delay": 1500}),
    (JobOptions(timeout=60 * SECOND), {"timeout": 60_000}),
    (JobOptions(job_id="own"), {"jobId": "own"}),
    (JobOptions(backoff=Backoff("fixed", SECOND)), {"backoff": {"type": "fixed", "delay": 1000}}),
    (
        JobOptions(backoff=Backoff(jitter=0.5)),
        {"backoff": {"type": "exponential", "delay": 1000, "jitter": 0.5}},
    ),
]

INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"attempts": 0}, "attempts"),
    ({"attempts": True}, "attempts"),
    ({"attempts": 2.5}, "attempts"),
    ({"timeout": timedelta(0)}, "timeout"),
    ({"timeout": -SECOND}, "timeout"),
    ({"timeout": timedelta(microseconds=400)}, "timeout"),
    ({"delay": -SECOND}, "delay"),
    ({"job_id": "a:b"}, "job id"),
]

BROKEN_OPTIONS: list[str] = [
    "",
    "{}",
    "null",
    "[]",
    "{",
    "[" * 100_000,
    '{"attempts":null,"timeout":"5","backoff":7}',
    '{"attempts":-3,"timeout":-1}',
    '{"attempts":true,"timeout":true}',
    '{"attempts":NaN,"timeout":NaN}',
    '{"lockDuration":999}',
    '{"lockDuration":86400001}',
    '{"priority":3,"lifo":true,"removeOnComplete":{"ages":1}}',
]

RETENTIONS: list[tuple[str, str]] = [
    ("true", "true 0 0"),
    ("false", ""),
    ("0", ""),
    ("7", "count 7 0"),
    ('{"age":10,"count":5}', "age_count 5 10"),
    ('{"age":10}', "age_count 0 10"),
    ('"x"', ""),
]

LEASES: list[tuple[dict[str, str], str | None, int | None]] = [
    ({}, None, None),
    ({"state": "active", "lastActive": "1000"}, None, 31),
    ({"state": "active", "lastActive": "1000", "gmo:token": "0123456789abcdef"}, None, 31),
    ({"state": "active", "lastActive": "1000", "gmo:token": "gmo-worker-1-a/0123"}, "gmo-worker-1-a", 31),
    ({"state": "active", "lastActive": "1000", "opts": '{"lockDuration":5000}'}, None, 6),
    ({"state": "completed", "lastActive": "1000", "gmo:token": "w/0"}, "w", None),
    ({"state": "active", "lastActive": "soon"}, None, None),
    ({"state": "active", "lastActive": "253402300799999"}, None, None),
    ({"state": "active", "lastActive": ""}, None, None),
]


def test_a_node_worker_reads_the_options_and_absent_ones_are_left_out(
    subtests: pytest.Subtests,
) -> None:
    for options, wire in OPTIONS_ON_THE_WIRE:
        with subtests.test(options=options):
            assert json.loads(options.to_wire()) == wire


def test_an_invalid_option_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for wrong, expected in INVALID_OPTIONS:
        with subtests.test(wrong=wrong), pytest.raises(InvalidJob, match=expected):
            JobOptions(**wrong)


@given(
    st.builds(
        JobOptions,
        attempts=st.integers(1, 1000),
        timeout=st.none() | st.timedeltas(timedelta(milliseconds=1), timedelta(days=30)),
        backoff=st.none()
        | st.builds(
            Backoff,
            kind=st.sampled_from(["fixed", "exponential"]),
            delay=st.timedeltas(timedelta(0), timedelta(days=30)),
            jitter=st.floats(0, 1),
        ),
    )
)
def test_a_worker_obeys_the_options_that_a_producer_wrote(options: JobOptions) -> None:
    obeyed = RunOptions.from_wire(options.to_wire())
    assert obeyed.attempts == options.attempts
    assert (obeyed.timeout is None) == (options.timeout is None)
    assert milliseconds(obeyed.timeout or timedelta(0)) == milliseconds(options.timeout or timedelta(0))
    assert (obeyed.backoff is None) == (options.backoff is None)
    if obeyed.backoff and options.backoff:
        assert obeyed.backoff.kind == options.backoff.kind
        assert obeyed.backoff.jitter == options.backoff.jitter
        assert milliseconds(obeyed.backoff.delay) == milliseconds(options.backoff.delay)


NOTHING = RunOptions(attempts=1, backoff=None, timeout=None)


def test_broken_and_unknown_options_are_ignored(subtests: pytest.Subtests) -> None:
    for text in BROKEN_OPTIONS:
        with subtests.test(text=text):
            assert RunOptions.from_wire(text) == NOTHING


def test_what_is_no_tag_is_left_out_of_the_options() -> None:
    many = [str(number) for number in range(40)]
    for tags, expected in (
        (["x", "", 7, "y", "x", "z" * 1025], ("x", "y")),
        ("x", ()),
        (many, tuple(many[:32])),
    ):
        assert RunOptions.from_wire(json.dumps({"tags": tags})).tags == expected


def test_options_beyond_all_measure_do_not_stop_a_worker(subtests: pytest.Subtests) -> None:
    for number in ("1e999", "Infinity", "1e300", "9" * 400):
        with subtests.test(number=number):
            found = RunOptions.from_wire(
                f'{{"attempts":{number},"timeout":{number},"backoff":{{"delay":{number}}}}}'
            )
            assert found.attempts >= 1
            assert found.backoff is not None


def test_a_backoff_as_node_writes_it_is_understood() -> None:
    found = RunOptions.from_wire('{"attempts":5,"backoff":{"type":"exponential","delay":200,"jitter":7}}')
    assert found == RunOptions(5, Backoff("exponential", timedelta(milliseconds=200), 1.0), None)


FIELDS = {
    "id": "7",
    "name": "clean",
    "state": "completed",
    "data": '{"month":1}',
    "opts": "{}",
    "returnvalue": "[1]",
    "attemptsMade": "2",
    "maxAttempts": "3",
    "timestamp": "1700000000000",
    "processedOn": "1700000001000",
    "finishedOn": "1700000002500",
    "failedReason": "first try",
    "progress": "50",
    "gmo:flow": "f",
    "gmo:node": "n",
}


def test_a_job_is_read_from_its_hash() -> None:
    job = Job.from_wire("etl", FIELDS)
    assert (job.id, job.queue, job.name, job.state) == ("7", "etl", "clean", JobState.COMPLETED)
    assert (job.data, job.result, job.progress) == ({"month": 1}, [1], 50)
    assert (job.attempts_made, job.max_attempts, job.failed_reason) == (2, 3, "first try")
    assert (job.flow_id, job.node) == ("f", "n")
    assert job.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert job.finished_at is not None
    assert job.started_at is not None
    assert (job.finished_at - job.started_at).total_seconds() == 1.5


def test_a_hash_with_unknown_and_without_optional_fields_is_a_job() -> None:
    job = Job.from_wire("etl", {"id": "7", "state": "waiting", "whatIsThis": "x", "usage": "{"})
    assert (job.name, job.data, job.result, job.failed_reason, job.progress) == ("", None, None, None, None)
    assert (job.attempts_made, job.max_attempts) == (0, 1)
    assert (job.created_at, job.started_at, job.finished_at, job.flow_id) == (None, None, None, None)


def test_empty_fields_are_like_absent_ones() -> None:
    empty = dict.fromkeys(FIELDS, "") | {"id": "7", "state": "waiting"}
    job = Job.from_wire("etl", {name: value for name, value in empty.items() if not name.startswith("gmo:")})
    assert job == Job.from_wire("etl", {"id": "7", "state": "waiting"})


def test_every_state_of_glide_mq_is_known() -> None:
    assert {str(state) for state in JobState} == {
        "waiting", "active", "delayed", "prioritized", "waiting-children", "group-waiting", "suspended",
        "completed", "failed", "skipped", "unknown",
    }  # fmt: skip
    assert {str(state) for state in JobState if state.is_terminal} == {"completed", "failed", "skipped"}


def test_packed_data_is_unpacked() -> None:
    assert Job.from_wire("etl", FIELDS | {"data": pack('{"a":1}')}).data == {"a": 1}


def test_stored_data_that_is_not_json_is_an_error_that_names_the_job() -> None:
    with pytest.raises(DecodeError, match="data of job 7"):
        Job.from_wire("etl", FIELDS | {"data": "{"})


def test_an_attempt_is_read_from_the_activated_hash() -> None:
    attempt = Attempt.from_wire("etl", "5-1", "token", FIELDS)
    assert (attempt.queue, attempt.entry_id, attempt.token, attempt.job_id) == ("etl", "5-1", "token", "7")
    assert (attempt.processed_on, attempt.attempts_made) == ("1700000001000", 2)
    assert (attempt.flow_id, attempt.node, attempt.options) == ("f", "n", NOTHING)


def test_progress_is_json_or_text(subtests: pytest.Subtests) -> None:
    for text, value in ((None, None), ("", None), ("50", 50), ("[1]", [1]), ("half", "half")):
        with subtests.test(text=text):
            assert read_progress(text) == value


def test_a_moment_may_be_written_like_a_lua_number(subtests: pytest.Subtests) -> None:
    for text, second in (("1000", 1), ("1000.7", 1), ("1e3", 1)):
        with subtests.test(text=text):
            assert moment(text) == datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC)


def test_milliseconds_are_rounded() -> None:
    assert [milliseconds(timedelta(microseconds=n)) for n in (0, 400, 600, 1_500_000)] == [0, 0, 1, 1500]


def test_retention_is_read_as_the_server_wants_it(subtests: pytest.Subtests) -> None:
    for wire, stored in RETENTIONS:
        with subtests.test(wire=wire):
            assert RunOptions.from_wire(f'{{"removeOnFail":{wire}}}').remove_on_fail == stored


def test_a_backoff_of_another_name_is_left_to_the_worker() -> None:
    found = RunOptions.from_wire('{"backoff":{"type":"mine","delay":5}}')
    assert found.backoff_name == "mine"
    assert RunOptions.from_wire('{"backoff":{"type":"fixed","delay":5}}').backoff_name == ""


def test_an_active_job_tells_its_worker_and_its_lease_whatever_is_stored(subtests: pytest.Subtests) -> None:
    for fields, worker, lease in LEASES:
        with subtests.test(fields=fields):
            job = Job.from_wire("etl", {"id": "1", **fields})
            until = None if lease is None else datetime.fromtimestamp(lease, UTC)
            assert (job.worker, job.lease_until) == (worker, until)
