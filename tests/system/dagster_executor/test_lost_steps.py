"""What kills and pauses do to steps of Dagster: of workers, of warm processes, of the server."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from glidemq_orchestrate import EmbeddedServer
from tests.processes import is_gone
from tests.providers.dagster.stepping import Steps, failure, kinds, place_of, wait_for
from tests.system.dagster_executor.launching import beside, paused, told

pytestmark = [pytest.mark.system, pytest.mark.long]


def test_the_steps_of_a_killed_worker_die_with_it_and_do_not_succeed(steps: Steps) -> None:
    def kill() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 60)
        steps.workers[0].kill()
        steps.workers[0].wait()
        wait_for(lambda: is_gone(pid), 5)
        (steps.path / "release").touch()

    with steps.worker(), beside(kill):
        succeeded, _, events = steps.run("holding", raise_on_error=False)
    assert not succeeded
    assert "the worker that ran it was lost" in failure(events, "held")
    assert kinds(events, "held") == ["STEP_START", "STEP_FAILURE"]
    assert not steps.noted("released")


def test_a_lost_step_runs_again_only_by_its_retry_policy(steps: Steps) -> None:
    def kill() -> None:
        wait_for(lambda: steps.noted("held_with_retry"), 60)
        first.kill()
        first.wait()
        os.kill(steps.workers[1].pid, signal.SIGCONT)

    with steps.worker() as first, steps.worker():
        # The second worker takes the lost job too, and refuses it.
        os.kill(steps.workers[1].pid, signal.SIGSTOP)
        with beside(kill):
            succeeded, run, events = steps.run("holding_with_retry", raise_on_error=False)
        assert succeeded, told(steps, run.run_id)()
        expected = ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED", "STEP_SUCCESS"]
        assert kinds(events, "held_with_retry") == expected
        assert len(steps.noted("held_with_retry")) == 2


def test_a_run_goes_on_after_the_server_was_away(tmp_path: Path) -> None:
    with ExitStack() as servers:
        first = servers.enter_context(EmbeddedServer(data_dir=tmp_path / "data"))
        port = int(first.url.rpartition(":")[2])

        def restart() -> None:
            wait_for(lambda: place.noted("extract"), 60)
            first.stop()
            servers.enter_context(EmbeddedServer(data_dir=tmp_path / "data", port=port))

        with place_of(first, tmp_path) as place, place.worker():
            with beside(restart):
                succeeded, run, _ = place.run("everything", raise_on_error=False)
            assert succeeded, told(place, run.run_id)()
            assert len(place.noted("extract")) == 1


def test_the_warm_process_may_be_killed(steps: Steps) -> None:
    def kill() -> None:
        (pid,) = wait_for(lambda: steps.noted("held"), 60)
        warm = psutil.Process(pid).parent()
        assert warm is not None
        warm.kill()
        wait_for(lambda: is_gone(pid), 10)

    with steps.worker():
        with beside(kill):
            succeeded, _, events = steps.run("holding", raise_on_error=False)
        assert not succeeded
        assert "warm process of the worker has ended" in failure(events, "held")
        assert kinds(events, "held") == ["STEP_START", "STEP_FAILURE"]
        succeeded, _, _ = steps.run("everything")
        assert succeeded


def test_a_paused_step_writes_nothing_beside_its_next_attempt(steps: Steps) -> None:
    def pause() -> None:
        (pid,) = wait_for(lambda: steps.noted("held_with_retry"), 60)
        with paused(first), steps.worker():
            wait_for(lambda: len(steps.noted("held_with_retry")) == 2, 120)
        wait_for(lambda: is_gone(pid), 20)

    with steps.worker() as first, beside(pause):
        succeeded, run, events = steps.run("holding_with_retry", raise_on_error=False)
    assert succeeded, told(steps, run.run_id)()
    expected = ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED", "STEP_SUCCESS"]
    assert kinds(events, "held_with_retry") == expected
