"""Distinguishing a retry from a clear: what operators of Airflow 3.1, 3.2 and 3.3 see in each situation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.task_attempt import (
    ATTEMPT_LABEL,
    KILLED,
    AirflowAttempt,
    Note,
    began,
    flow_id_for,
    is_taken_over,
)

from glidemq_orchestrate import FlowState
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.runs import Decision, decide
from tests.providers.airflow.builders import FakeRun, FakeTask

S0, S1 = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)

FOREIGN_LABELS: list[str] = [
    "",
    "no JSON",
    "[]",
    "{}",
    '{"start":1,"max_tries":2}',
    '{"start":"x","max_tries":"2"}',
    "\udcff",
    "null",
]

INCOMPLETE_LABELS: list[dict[str, str | None]] = [
    {"try": "two"},
    {"map_index": "x"},
    {"orchestrator": "dagster"},
    {"run_id": None},
]


def attempt(  # noqa: PLR0917  in the order of the columns of a table
    try_number: int = 1,
    max_tries: int = 2,
    clears: int = 0,
    start: datetime | None = S0,
    retries: int = 2,
    run_after: datetime = S0,
    run_id: str = "r",
) -> AirflowAttempt:
    ti: Any = FakeTask(run_id=run_id, try_number=try_number, max_tries=max_tries)
    run: Any = FakeRun(start_date=start, run_after=run_after, clear_number=clears)
    return AirflowAttempt.of(ti, run, retries)


def generation(
    by: AirflowAttempt | None,
    number: int = 0,
    state: str = "failed",
    labels: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    **more: Any,
) -> FlowStatus:
    """A generation that an attempt began; None: somebody else."""
    known: dict[str, str] = {}
    if by is not None:
        parts = {"orchestrator": "airflow", "dag_id": "d", "task_id": "t", "run_id": "r", "map_index": "-1"}
        known = {**parts, "try": str(by.number), **by.label()}
    return FlowStatus(
        id="f",  # type: ignore[arg-type]
        name="n",
        state=FlowState(state),
        home="q",
        total=1,
        completed=0,
        failed=0,
        reason=more.pop("reason", ""),
        labels=known if labels is None else labels,
        created_at=S0,
        finished_at=None,
        generation=number,
        idempotency_key=(by.request if by else "") if idempotency_key is None else idempotency_key,
        **more,
    )


FIRST = attempt()

FOUND_FLOWS: list[tuple[str, AirflowAttempt, Decision]] = [
    ("b automatic retry", attempt(2), Decision.REPAIR),
    ("the same try again", attempt(1), Decision.REPAIR),
    ("c1 clear of a failed one after one try", attempt(2, 3, 1, S1), Decision.RESTART),
    ("c2 clear of a failed one after three tries", attempt(4, 5, 1, S1), Decision.RESTART),
    ("d clear of a successful one", attempt(3, 4, 1, S1), Decision.RESTART),
    ("e clear while deferred", attempt(2, 3, 1), Decision.RESTART),
    ("e on 3.1", attempt(2, 3, 0), Decision.RESTART),
    ("f clear while running", attempt(2, 3, 1), Decision.RESTART),
    ("h run deleted, created again", attempt(1, 2, 0, S1), Decision.RESTART),
    ("h of a manual run", attempt(1, 2, 0, S1, run_after=S1), Decision.RESTART),
    ("i backfill over the run", attempt(2, 3, 1, S1), Decision.RESTART),
    ("k1 retries edited before an automatic retry", attempt(2, retries=5), Decision.REPAIR),
    ("k1 edited to none", attempt(2, retries=0), Decision.REPAIR),
    ("k2 retries raised, clear", attempt(2, 5, 1, S1, retries=4), Decision.RESTART),
    ("k4 lowered, clear, run had ended", attempt(2, 2, 1, S1, retries=1), Decision.RESTART),
    ("k6 lowered, clear, run still running", attempt(2, 2, 1, retries=1), Decision.RESTART),
    ("k6 on 3.1: not told apart", attempt(2, 2, 0, retries=1), Decision.REPAIR),
    ("k6, and its first try was lost", attempt(3, 2, 1, retries=1), Decision.RESTART),
    ("n sibling cleared; f2 is not told apart", attempt(2, 2, 1), Decision.REPAIR),
    ("q run put back to queued", attempt(2, 2, 0, S1), Decision.REPAIR),
    ("an older start", attempt(2, 2, 0, None), Decision.YIELD),
]


def test_a_retry_repairs_and_a_clear_runs_anew(
    subtests: pytest.Subtests,
) -> None:
    for case, now, expected in FOUND_FLOWS:
        with subtests.test(case):
            shown = Note(FIRST.request, 0, is_shown=True).text
            assert decide(now, [generation(FIRST, state="running")]) is expected
            assert decide(now, [generation(FIRST, state="completed", note=shown)]) is expected


CLEAR, EARLIER = attempt(4, 5, 2, S1), attempt(2, 3, 1, S1)

CLEARED: list[tuple[str, str, dict[str, Any], Decision]] = [
    ("what failed", "failed", {}, Decision.REPAIR),
    ("retried by hand, failed again", "failed", {"times_reopened": 1}, Decision.REPAIR),
    ("retried by hand, and runs", "running", {"times_reopened": 1}, Decision.REPAIR),
    ("retried by hand, and completed", "completed", {"times_reopened": 1}, Decision.REPAIR),
    ("restarted by hand, and runs", "running", {"idempotency_key": ""}, Decision.REPAIR),
    ("restarted and complete", "completed", {"idempotency_key": "cli"}, Decision.REPAIR),
    ("completed, but the task failed with it", "completed", {}, Decision.REPAIR),
    (
        "retried by hand, joined, cleared while it waits",
        "running",
        {"times_reopened": 1, "note": Note(EARLIER.request, 1).text},
        Decision.RESTART,
    ),
    (
        "restarted by hand, shown, cleared again",
        "completed",
        {"idempotency_key": "", "note": Note(EARLIER.request, 0, is_shown=True).text},
        Decision.RESTART,
    ),
    (
        "shown, then run again by hand",
        "completed",
        {"times_reopened": 2, "note": Note(EARLIER.request, 1, is_shown=True).text},
        Decision.REPAIR,
    ),
    (
        "a retry of the clear that has joined and shown it",
        "completed",
        {"note": Note(CLEAR.request, 0, is_shown=True).text},
        Decision.REPAIR,
    ),
    ("killed or cleared in a worker", "cancelled", {"reason": KILLED}, Decision.RESTART),
    ("cleared while waiting", "cancelled", {"reason": "x (state: none)"}, Decision.RESTART),
    ("marked success", "cancelled", {"reason": "x (state: success)"}, Decision.RESTART),
    ("marked failed", "cancelled", {"reason": "x (state: failed)"}, Decision.REPAIR),
    ("timed out", "cancelled", {"reason": "execution_timeout"}, Decision.REPAIR),
    ("an odd note", "failed", {"note": "somebody else's"}, Decision.REPAIR),
]


def test_a_clear_runs_what_the_task_shows_as_not_done(subtests: pytest.Subtests) -> None:
    for case, state, more, expected in CLEARED:
        with subtests.test(case):
            assert decide(CLEAR, [generation(FIRST, state=state, **more)]) is expected


def test_nothing_is_kept_of_another_run_or_an_older_input() -> None:
    failed = [generation(replace(FIRST, before="abc"))]
    assert decide(replace(CLEAR, before="abc"), failed) is Decision.REPAIR
    assert decide(replace(CLEAR, before="def"), failed) is Decision.RESTART
    assert decide(replace(CLEAR, before=None), failed) is Decision.RESTART, "Airflow does not tell"
    assert decide(replace(CLEAR, before=""), failed) is Decision.RESTART, "there is none any more"
    assert decide(attempt(1, 2, 0, S1), [generation(FIRST)]) is Decision.RESTART, "created again"
    assert decide(replace(attempt(2), before="def"), failed) is Decision.REPAIR, "a retry"


def test_a_clear_of_a_task_that_shows_no_end_runs_all() -> None:
    clear = replace(CLEAR, shows_end=False)
    for state in ("failed", "running", "completed", "cancelled"):
        found = [generation(FIRST, state=state, times_reopened=1)]
        assert decide(clear, found) is Decision.RESTART
        assert decide(replace(attempt(2), shows_end=False), found) is Decision.REPAIR
        by_hand = [*found, generation(FIRST, 1, state=state, idempotency_key="")]
        assert decide(clear, by_hand) is Decision.REPAIR
        joined = [
            *found,
            generation(FIRST, 1, state=state, idempotency_key="", note=Note(EARLIER.request, 0).text),
        ]
        assert decide(clear, joined) is Decision.RESTART


def test_a_clear_that_looks_like_a_retry_is_known_by_the_cancelled_flow() -> None:
    cancelled = [generation(FIRST, state="cancelled", reason=KILLED)]
    assert decide(attempt(2, 2, 1), cancelled) is Decision.RESTART
    assert decide(attempt(2, 2, 0), cancelled) is Decision.REPAIR  # killed, and retried


def test_the_first_try_submits_and_what_others_began_is_joined() -> None:
    stranger = {"orchestrator": "airflow", "dag_id": "d", "task_id": "other", "run_id": "r", "try": "1"}
    stranger |= FIRST.label()
    assert decide(FIRST, []) is Decision.SUBMIT
    assert decide(FIRST, [generation(None)]) is Decision.JOIN
    assert decide(FIRST, [generation(FIRST, labels=stranger)]) is Decision.JOIN
    own_first = [generation(FIRST), generation(None, 1, labels=stranger)]
    assert decide(attempt(2, 3), own_first) is Decision.JOIN, "the other task has taken it over"
    assert decide(attempt(1, run_id="r2"), [generation(FIRST)]) is Decision.JOIN


def test_a_generation_begun_by_hand_leaves_the_flow_with_its_task() -> None:
    by_hand = [generation(FIRST), generation(None, 1)]
    assert decide(attempt(2), by_hand) is Decision.REPAIR
    assert decide(attempt(2, 3, 1), by_hand) is Decision.REPAIR


def test_an_older_try_yields_to_a_later_one() -> None:
    both = [generation(FIRST), generation(attempt(2, 3, 1), 1)]
    assert decide(FIRST, both) is Decision.YIELD
    assert decide(FIRST, [*both, generation(None, 2)]) is Decision.YIELD
    assert decide(attempt(3, 3, 1), both) is Decision.REPAIR


def test_labels_that_others_wrote_name_no_task(subtests: pytest.Subtests) -> None:
    for odd in FOREIGN_LABELS:
        with subtests.test(odd=odd):
            labels = {**generation(FIRST).labels, ATTEMPT_LABEL: odd}
            assert began(generation(FIRST, labels=labels)) is None


def test_labels_that_lack_a_part_name_no_task(subtests: pytest.Subtests) -> None:
    for broken in INCOMPLETE_LABELS:
        with subtests.test(broken=broken):
            labels = {**generation(FIRST).labels, **broken}
            known = {name: value for name, value in labels.items() if value is not None}
            assert began(generation(FIRST, labels=known)) is None


def test_a_request_is_short_and_plain_whatever_the_names_are() -> None:
    ti: Any = FakeTask(
        dag_id="d" * 250, task_id="\n\x00 ü", run_id="r:+" * 80, try_number=10**6, max_tries=10**6
    )
    run: Any = FakeRun(start_date=None)
    made = AirflowAttempt.of(ti, run, None)
    assert len(made.own_request) < 128
    assert made.own_request.isprintable()
    assert made.task == flow_id_for("d" * 250, "\n\x00 ü", "r:+" * 80)
    assert len(json.dumps(made.label()[ATTEMPT_LABEL])) < 256


def test_a_flow_is_taken_over_by_a_later_attempt_of_the_task_only() -> None:
    task, second = FIRST.task, attempt(2, 3, 1)
    stranger = {"orchestrator": "airflow", "dag_id": "d", "task_id": "other", "run_id": "r", "try": "9"}
    stranger |= FIRST.label()
    assert is_taken_over(task, 0, [generation(FIRST), generation(second, 1)])
    assert is_taken_over(task, 0, [generation(FIRST), generation(second, 1), generation(None, 2)])
    assert not is_taken_over(task, 1, [generation(FIRST), generation(second, 1), generation(None, 2)])
    assert not is_taken_over(task, 0, [generation(FIRST), generation(FIRST, 1)]), "by hand, labels are kept"
    assert not is_taken_over(task, 0, [generation(FIRST), generation(None, 1, labels=stranger)])
    assert not is_taken_over("af-another", 0, [generation(FIRST), generation(second, 1)])
