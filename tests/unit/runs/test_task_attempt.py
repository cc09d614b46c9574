"""What an attempt does with the flow that is there."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import FlowState
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.runs import CountedAttempt, Decision, Origin, beginning, decide, derived_id

FIRST = CountedAttempt("toy", "t", run=0, number=1)


def attempt(run: int = 0, number: int = 2) -> CountedAttempt:
    return CountedAttempt("toy", "t", run, number)


def generation(request: str = FIRST.request, state: str = "failed", **more: Any) -> FlowStatus:
    return FlowStatus(
        id="f",  # type: ignore[arg-type]
        name="n",
        state=FlowState(state),
        home="q",
        total=1,
        completed=0,
        failed=0,
        reason="",
        labels={},
        created_at=None,
        finished_at=None,
        idempotency_key=request,
        **more,
    )


HISTORIES: list[tuple[CountedAttempt, list[str], Decision]] = [
    (FIRST, [], Decision.SUBMIT),
    (attempt(), ["toy:t/0"], Decision.REPAIR),
    (FIRST, ["toy:t/0"], Decision.REPAIR),
    (attempt(1), ["toy:t/0"], Decision.RESTART),
    (attempt(1), ["toy:t/0", "toy:t/1/7"], Decision.REPAIR),
    (attempt(), ["toy:t/0", "toy:t/1"], Decision.YIELD),
    (attempt(), ["toy:t/0", "toy:t/1", "a click"], Decision.YIELD),
    (attempt(), ["toy:t/0", "a click"], Decision.REPAIR),
    (attempt(), [""], Decision.JOIN),
    (attempt(), ["toy:other/0"], Decision.JOIN),
    (attempt(), ["toy:t/0", "toy:other/9"], Decision.JOIN),
    (attempt(), ["toys:t/0"], Decision.JOIN),
    (attempt(), ["toy:t/x"], Decision.JOIN),
]


def test_the_history_of_a_flow_decides(subtests: pytest.Subtests) -> None:
    for now, requests, expected in HISTORIES:
        with subtests.test(now=now):
            assert decide(now, [generation(one) for one in requests]) is expected


def test_a_beginning_repairs_restarts_or_attaches() -> None:
    def how(now: CountedAttempt, *history: FlowStatus, **kw: Any) -> tuple[str, str]:
        found = beginning(now, history, **kw)
        return found.on_existing, found.request

    assert how(FIRST) == ("attach", "toy:t/0")
    assert how(attempt(), generation()) == ("retry_failed", "toy:t/0")
    assert how(attempt(1), generation()) == ("restart", "toy:t/1")
    assert how(attempt(1), generation(), on_existing="restart") == ("restart", "toy:t/1/2"), "each try"
    assert how(attempt(1), generation(), on_existing="retry_failed") == ("retry_failed", "toy:t/1")
    completed = generation(state="completed")
    assert how(attempt(1), completed, on_existing="retry_failed") == ("restart", "toy:t/1/2")
    assert how(attempt(), generation(""), on_existing="attach") == ("attach", "toy:t/0")


def test_a_request_begins_no_second_generation_of_its_name() -> None:
    again = [generation("toy:t/1"), generation("toy:t/0")]
    assert beginning(attempt(1), again).request == "toy:t/1/2"


BEGINNINGS: list[tuple[CountedAttempt, FlowStatus | None, tuple[bool, bool, bool]]] = [
    (FIRST, None, (True, True, False)),
    (attempt(), generation(state="completed"), (True, False, False)),
    (attempt(1), generation(state="completed"), (True, True, False)),
    (FIRST, generation(""), (False, True, False)),
    (attempt(), generation(""), (False, True, True)),
]


def test_what_follows_from_a_beginning(subtests: pytest.Subtests) -> None:
    for now, found, expected in BEGINNINGS:
        with subtests.test(now=now):
            begun = beginning(now, [] if found is None else [found])
            assert (begun.is_own, begun.needs_workers, begun.repairs) == expected


def test_a_later_try_of_the_same_run_replaces_an_earlier_one() -> None:
    assert FIRST.is_replaced_in(generation(note=attempt().own_request))
    for note in (FIRST.own_request, attempt(1).own_request, "", "toy:t/0/x"):
        assert not FIRST.is_replaced_in(generation(note=note)), note


def test_an_origin_names_the_task_and_the_run() -> None:
    assert FIRST.origin(generation("toy:t/12/3")) == Origin("t", 12)


def test_derived_ids_are_short_equal_for_equal_parts_and_differ_otherwise() -> None:
    assert derived_id("toy", "a", "b") == derived_id("toy", "a", "b")
    assert len({derived_id("toy", *parts) for parts in (("a", "b"), ("ab",), ("ab", ""), ("b", "a"))}) == 4
    assert len(derived_id("toy", "x" * 10_000)) == 36
