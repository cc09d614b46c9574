"""The trips of adding a job and waiting for its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.awaited import add_awaited, wait_for
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.unit.conftest import ManualClock, Scripted, Transcript

KEYS = QueueKeys("glide", "etl")
JOB = "7"


def event(kind: str, job_id: str = JOB, **fields: str) -> list[Any]:
    """An entry of the events stream."""
    words = {"event": kind, "jobId": job_id} | fields
    return ["5-1", [word for pair in words.items() for word in pair]]


def read(*entries: Any) -> dict[str, Any]:
    """The reply to a read of events."""
    return {KEYS.key("events"): list(entries)}


@pytest.fixture
def wait(scripted: Scripted, clock: ManualClock) -> Any:
    """Adds a job with this newest event after it, and waits for it with these replies."""

    def run(newest: list[Any], *replies: Any) -> Transcript:
        added = scripted(add_awaited(KEYS, NewJob("work"), 5_000, clock), [[JOB, newest]])
        assert added.names == ["glidemq_addJob", "XREVRANGE"]
        assert len(added.requests) == 1, "one trip"
        return scripted(wait_for(KEYS, added.value, clock), replies)

    return run


def test_the_end_of_a_job_has_its_result(wait: Any) -> None:
    others = read(event("completed", "8", returnvalue="8"))
    done = wait([event("added")], others, read(event("completed", returnvalue='{"rows": 3}')))
    assert done.value == {"rows": 3}
    assert done.names == ["XREAD", "XREAD"]


@pytest.mark.parametrize("newest", [[event("completed")], [event("added", "8")], []])
def test_a_job_that_may_have_ended_is_read_first(wait: Any, newest: list[Any]) -> None:
    done = wait(newest, ["completed", "[1]", None])
    assert done.value == [1]
    assert done.names == ["HMGET"]


@pytest.mark.parametrize("end", [event("completed"), event("removed")])
def test_an_end_without_a_result_is_looked_up(wait: Any, end: list[Any]) -> None:
    done = wait([event("added")], read(event("active"), end), ["completed", "[1]", None])
    assert done.value == [1]
    assert done.names == ["XREAD", "HMGET"]
