"""What a queue must be like; which conditions say nothing. No server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.conditions import QueueCondition, QueueState

from glidemq_orchestrate import JobState
from glidemq_orchestrate.clients.queue import WorkerInfo

EMPTY_CONDITIONS: list[tuple[Any, str]] = [
    ({}, "give either a condition, or"),
    ({"condition": "empty", "at_most": 0}, "give either a condition, or"),
    ({"condition": "drained"}, "one of empty, idle, paused, resumed, served, got 'drained'"),
    ({"at_least": -1}, "must not be negative"),
    ({"at_least": 1.5}, "must be a whole number"),
    ({"at_most": True}, "must be a whole number"),
    ({"at_least": 0}, "always true"),
    ({"at_least": 3, "at_most": 2}, "never true"),
    ({"at_least": 1, "states": ("waiting-children",)}, "states must be of waiting, "),
    ({"at_least": 1, "states": ()}, "got none"),
    ({"condition": "idle", "states": ("active",)}, "states is for"),
    ({"condition": "idle", "jobs": ("a",)}, "jobs is for"),
    ({"at_most": 0, "jobs": ("a",)}, "jobs is for"),
]


def state(*, paused: bool = False, workers: int = 0, handlers: Any = (), **counts: int) -> QueueState:
    return QueueState(counts, paused, workers, None if handlers is None else frozenset(handlers))


CONDITIONS: list[tuple[Any, QueueState, QueueState]] = [
    ({"condition": "empty"}, state(active=1, delayed=1, failed=1), state(waiting=1)),
    ({"condition": "empty"}, state(), state(prioritized=1)),
    ({"condition": "idle"}, state(completed=5, failed=1), state(active=1)),
    ({"condition": "idle"}, state(), state(delayed=1)),
    ({"condition": "idle"}, state(), state(suspended=1)),
    ({"condition": "paused"}, state(paused=True), state()),
    ({"condition": "resumed"}, state(), state(paused=True)),
    ({"condition": "served"}, state(workers=1), state(waiting=1)),
    (
        {"condition": "served", "jobs": ("a",)},
        state(workers=1, handlers="ab"),
        state(workers=1, handlers="b"),
    ),
    ({"condition": "served", "jobs": ("a",)}, state(workers=1, handlers=None), state(handlers=None)),
    ({"at_least": 3}, state(waiting=1, prioritized=2), state(waiting=2, active=9)),
    ({"at_most": 3}, state(waiting=3, failed=9), state(waiting=4)),
    ({"at_most": 0}, state(active=1), state(waiting=1)),
    ({"at_least": 1, "at_most": 2}, state(waiting=2), state(waiting=3)),
    ({"at_least": 1, "states": ("failed",)}, state(failed=1), state(waiting=5)),
]


def test_a_condition_is_met_or_not(subtests: pytest.Subtests) -> None:
    for condition, met, not_met in CONDITIONS:
        with subtests.test(condition=condition):
            wanted = QueueCondition(**condition)
            assert wanted.is_met(met)
            assert not wanted.is_met(not_met)


def test_what_says_nothing_is_refused(subtests: pytest.Subtests) -> None:
    for condition, why in EMPTY_CONDITIONS:
        with subtests.test(condition=condition), pytest.raises((ValueError, TypeError), match=why):
            QueueCondition(**condition)


def test_they_are_told_in_words() -> None:
    assert str(QueueCondition(at_least=1, at_most=2)) == "at least 1 and at most 2 waiting or prioritized"
    assert str(QueueCondition("served", jobs=("a", "b"))) == "served with a, b"
    assert (
        str(state(waiting=3, failed=1, workers=2, paused=True))
        == "3 waiting, 1 failed; 2 live workers; paused"
    )
    assert str(state()) == "no jobs; no live workers"


def test_a_queue_that_was_never_used_is_unknown() -> None:
    assert state(waiting=0).is_unknown
    for used in (state(completed=1), state(workers=1), state(paused=True)):
        assert not used.is_unknown


def worker(handlers: tuple[str, ...] | None) -> WorkerInfo:
    return WorkerInfo("w", "h", 1, datetime.now(UTC), 0, handlers)


def test_a_worker_that_does_not_tell_its_handlers_has_them_all() -> None:
    counts = {JobState.WAITING: 2}
    assert QueueState.of(counts, False, [worker(("a",)), worker(("b", "a"))]).handlers == frozenset("ab")
    assert QueueState.of(counts, False, [worker(("a",)), worker(None)]).handlers is None
    assert QueueState.of(counts, False, []) == state(waiting=2)
    of_a_subscription = replace(worker(()), subscription="all")
    assert QueueState.of(counts, False, [of_a_subscription]) == state(waiting=2)
