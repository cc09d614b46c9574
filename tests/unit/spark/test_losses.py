"""Steps whose session was lost run again, alone if that can be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from glidemq_orchestrate.spark.losses import MOST_KNOWN, Losses

if TYPE_CHECKING:
    from tests.conftest import Eventually


def never() -> bool:
    return False


def test_losses_are_counted_by_job_until_one_run_went_well() -> None:
    losses = Losses()
    assert [losses.note("a"), losses.note("a"), losses.note("b")] == [1, 2, 1]
    losses.forget("a")
    assert losses.note("a") == 1


def test_no_more_jobs_are_known_than_fit() -> None:
    losses = Losses()
    losses.note("first")
    for number in range(MOST_KNOWN):
        losses.note(str(number))
    assert losses.note("first") == 1
    assert losses.note(str(MOST_KNOWN - 1)) == 2


def test_steps_run_side_by_side_while_nothing_was_lost() -> None:
    losses = Losses()
    with losses.place("a", never) as first, losses.place("b", never) as second:
        assert (first, second) == (False, False)


def test_a_suspect_waits_for_the_others_and_they_for_it(eventually: Eventually) -> None:
    losses, order, go = Losses(alone_seconds=30), list[str](), threading.Event()
    losses.note("suspect")

    def run(job: str) -> bool:
        with losses.place(job, never) as alone:
            order.append(job)
            eventually(go.is_set, 30)
            return alone

    with ThreadPoolExecutor(3) as pool:
        with losses.place("before", never):
            suspect = pool.submit(run, "suspect")
            beside = pool.submit(run, "beside")  # it does not wait for one that only waits
            eventually(lambda: order == ["beside"], 10)
        go.set()
        assert not beside.result(10)
        assert suspect.result(10)
        go.clear()
        losses.note("suspect")
        again = pool.submit(run, "suspect")
        eventually(lambda: order[-1] == "suspect" and len(order) == 3, 10)
        after = pool.submit(run, "after")
        go.wait(0.3)
        assert "after" not in order
        go.set()
        assert again.result(10)
        assert not after.result(10)


def test_nobody_waits_longer_than_the_limit_or_when_cancelled() -> None:
    losses = Losses(alone_seconds=0.2)
    losses.note("suspect")
    with losses.place("long", never), losses.place("suspect", never) as alone:
        assert not alone
    patient = Losses(alone_seconds=60)
    patient.note("suspect")
    with ExitStack() as stack:
        stack.enter_context(patient.place("long", never))
        assert not stack.enter_context(patient.place("suspect", lambda: True))
