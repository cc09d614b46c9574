"""What the nodes of a task say about it: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.group_flow import (
    Seen,
    end_of,
    is_cleared_alone,
    is_over,
    may_be_marked,
    progress,
    to_start_over,
)

from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs.states import JobState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = datetime(2026, 1, 1, 13, tzinfo=UTC)


def node(state: str, name: str = "b", *, at: datetime | None = None, **more: Any) -> NodeStatus:
    fields = {"attempts": 1, "reason": "", "reruns": 0, **more}
    ended = at if state in ("completed", "failed", "skipped") else None
    return NodeStatus(
        name, "q", "id", "j", (), JobState(state), progress=None, started_at=None, finished_at=ended, **fields
    )


def seen(*nodes: NodeStatus, attempt: int = 1, generation: int = 0) -> Seen:
    return Seen.of(nodes, attempt=attempt, generation=generation)


def test_what_was_seen_survives_its_form_as_json() -> None:
    made = seen(node("completed", at=NOON), node("failed", at=ONE, reruns=2))
    assert made == Seen(1, 0, 2, ONE.isoformat())
    assert Seen.read(made.stored()) == made
    assert Seen.read(None) is None
    assert Seen.read({"attempt": 1, "other": 2}) is None


DONE, AGAIN = node("completed", at=NOON), node("completed", at=ONE, reruns=1)
RUNS, WAITS, BLOCKED = node("active"), node("waiting"), node("waiting-children")

ENDS_SHOWN: list[tuple[str, NodeStatus, NodeStatus, int, bool]] = [
    ("it shows the end of before", DONE, DONE, 0, True),
    ("a task before it was cleared, and it has run again", DONE, AGAIN, 0, False),
    ("a task before it was cleared, and it runs again", DONE, RUNS, 0, False),
    ("a task before it was cleared, and it waits for that", DONE, BLOCKED, 0, False),
    ("another task was cleared alone, and the flow begun anew from there", DONE, DONE, 1, True),
    ("it was cleared while it ran", RUNS, RUNS, 0, True),
    ("it was cleared while it ran, and has started over", RUNS, node("active", reruns=1), 0, False),
    ("launch was cleared while it ran", RUNS, RUNS, 1, False),
    ("it was cleared while it waited, and waits still", RUNS, WAITS, 0, False),
    ("it was cleared while it waited, with a task before it", WAITS, BLOCKED, 0, False),
    ("it was cleared while it ran, and has ended since", RUNS, DONE, 0, True),
    ("it was cleared while it ran, has started over and ended", RUNS, AGAIN, 0, False),
]


def test_a_task_that_was_cleared_alone_shows_no_end_twice(subtests: pytest.Subtests) -> None:
    for case, before, now, generation, is_alone in ENDS_SHOWN:
        with subtests.test(case):
            later = seen(now, attempt=2, generation=generation)
            assert is_cleared_alone(seen(before), later, [now]) is is_alone


def test_the_first_try_and_a_trigger_that_starts_again_start_nothing_over() -> None:
    assert not is_cleared_alone(None, seen(DONE, attempt=2), [DONE])
    assert not is_cleared_alone(seen(DONE, attempt=2), seen(DONE, attempt=2), [DONE])


def test_a_start_that_was_cut_off_is_due_until_a_try_has_made_it() -> None:
    begun = replace(seen(RUNS), starts_over=2)
    assert is_cleared_alone(begun, seen(AGAIN, attempt=2), [AGAIN])
    assert is_cleared_alone(begun, seen(AGAIN, attempt=3), [AGAIN])
    assert not is_cleared_alone(replace(begun, attempt=2), seen(AGAIN, attempt=2), [AGAIN])
    assert Seen.read(begun.stored()) == begun
    assert Seen.read({"attempt": 1, "generation": 0, "run": 0, "ended": None}) == seen(
        RUNS
    )  # of a release before


NODES_AND_MARKS: list[tuple[NodeStatus, bool]] = [
    (node("failed", attempts=0, reason="upstream failed: a"), True),
    (node("skipped", attempts=0), True),
    (node("waiting-children", attempts=0), True),
    (node("failed", attempts=0, reason="cancelled: x"), False),
    (node("failed", attempts=2, reason="ValueError"), False),
    (node("waiting", attempts=0), False),
    (DONE, False),
]


def test_marks_are_looked_for_only_where_others_keep_a_node_waiting(
    subtests: pytest.Subtests,
) -> None:
    for one, may_be in NODES_AND_MARKS:
        with subtests.test(node=one):
            assert may_be_marked([one]) is may_be


def test_how_a_task_ends() -> None:
    completed, skipped = node("completed", "b[0]"), node("skipped", "b[1]", reason="nothing to do")
    failed = node("failed", "b[2]", reason="ValueError: x", attempts=3)
    assert end_of([completed, skipped]) == (JobState.COMPLETED, "")
    assert end_of([skipped]) == (JobState.SKIPPED, "nothing to do")
    assert end_of([failed]) == (JobState.FAILED, "ValueError: x (attempts: 3)")
    assert end_of([completed, failed, skipped]) == (
        JobState.FAILED,
        "1/3, failed: 2, skipped: 1. b[2]: ValueError: x (attempts: 3)",
    )
    assert not is_over([])
    assert not is_over([completed, node("active")])


def test_the_line_of_progress_names_the_places_of_those_that_failed() -> None:
    nodes = [node("failed" if at in (3, 17) else "completed", f"b[{at}]") for at in range(989)]
    nodes += [node("active", f"b[{at}]") for at in range(989, 1000)]
    assert progress(nodes) == "987/1000, failed: 3, 17"
    many = [node("failed", f"b[{at}]") for at in range(12)]
    assert progress(many) == "0/12, failed: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_of_a_task_that_failed_only_what_failed_runs_again() -> None:
    failed = replace(DONE, name="a[1]", state=JobState.FAILED)
    skipped = replace(DONE, name="a[2]", state=JobState.SKIPPED)
    assert to_start_over([DONE, failed, skipped]) == ["a[1]"]
    assert to_start_over([DONE, skipped]) == [DONE.name, "a[2]"]
    assert to_start_over([RUNS, failed]) == [RUNS.name, "a[1]"], "it showed no failure yet"
