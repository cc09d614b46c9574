"""Steps whose session was lost run again, in one of their own."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.spark import handler
from glidemq_orchestrate.spark.failures import SessionGone
from glidemq_orchestrate.spark.handler import MAX_KNOWN, Losses, SessionLost
from glidemq_orchestrate.worker.handlers.signals import RetryLater


def test_losses_are_counted_by_job_until_one_run_went_well() -> None:
    losses = Losses()
    assert [losses.note("a"), losses.note("a"), losses.note("b")] == [1, 2, 1]
    assert losses.is_suspect("a")
    losses.forget("a")
    assert not losses.is_suspect("a")
    assert losses.note("a") == 1


def test_no_more_jobs_are_known_than_fit() -> None:
    losses = Losses()
    losses.note("first")
    for number in range(MAX_KNOWN):
        losses.note(str(number))
    assert losses.note("first") == 1
    assert losses.note(str(MAX_KNOWN - 1)) == 2


def test_losses_are_free_until_the_step_is_to_blame(subtests: pytest.Subtests) -> None:
    for is_alone, kinds in ((True, [1, 0, 0]), (False, [1, 1, 0])):
        with subtests.test(is_alone=is_alone):
            gone = SessionGone("the session was lost")
            gone.is_alone = is_alone
            found = [handler._lost(gone, count) for count in (1, 2, 3)]
            assert [type(one) for one in found] == [RetryLater if free else SessionLost for free in kinds]
            assert not any(one.counts for one in found if isinstance(one, RetryLater))
            assert "(3 times in a row): its driver ran out of memory" in str(found[2])


def test_what_the_step_met_is_told_in_place_of_a_guess() -> None:
    gone = SessionGone("the session was lost", "its executors failed. Fix: look")
    assert str(handler._lost(gone, 1)) == (
        "the session was lost: its executors failed. Fix: look; it runs again"
    )
    assert str(handler._lost(gone, 3)) == (
        "the session was lost (3 times in a row): its executors failed. Fix: look"
    )
