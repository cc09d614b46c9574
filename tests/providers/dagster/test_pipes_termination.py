"""A step that is terminated while its job runs."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient, flow_id_for
from sqlalchemy.exc import OperationalError

from glidemq_orchestrate import Context, FlowProducer, FlowState
from glidemq_orchestrate.pipes import open_pipes
from tests.providers.dagster.builders import messages
from tests.providers.dagster.pipes_steps import clean, run

RunWorker = Callable[..., Any]


@pytest.fixture
def pipes(url: str) -> PipesGlideMQClient:
    return PipesGlideMQClient(url=url, poll_interval=0.1)


def test_termination_cancels_and_waits(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker, url: str
) -> None:
    stopped = threading.Event()

    async def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("running")
        try:
            await _forever()
        finally:
            stopped.set()

    run_worker(["etl"], {"clean": work})
    result, flow_id = terminated(pipes, instance)
    assert not result
    with FlowProducer(url) as flows:
        status = flows.get(flow_id).status()
    assert status.state is FlowState.CANCELLED
    assert status.reason.endswith("was terminated")
    assert stopped.wait(20)


def test_without_forwarding_the_job_runs_on(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    go_on = threading.Event()

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("running")
        go_on.wait(30)

    run_worker(["etl"], {"clean": work})
    pipes = PipesGlideMQClient(url=url, poll_interval=0.1, forward_termination=False)
    _, flow_id = terminated(pipes, instance)
    with FlowProducer(url) as flows:
        assert flows.get(flow_id).status().state is FlowState.RUNNING
        go_on.set()
        assert flows.get(flow_id).wait(timeout=timedelta(seconds=20)).status.state is FlowState.COMPLETED


async def _forever() -> None:
    await asyncio.sleep(600)


def terminated(pipes: PipesGlideMQClient, instance: dg.DagsterInstance) -> tuple[bool, str]:
    """Interrupt a step as Dagster does it when its job logs `running`; its flow id."""

    found: list[str] = []
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OperationalError):  # the step is writing
                runs = instance.get_run_ids(limit=1)
                if runs and "running" in messages(instance, runs[0]):
                    os.kill(os.getpid(), signal.SIGINT)
                    return

    def body(context: Any, pipes: PipesGlideMQClient) -> Any:
        found.append(flow_id_for(context, "clean"))
        return clean(context, pipes)

    killer = threading.Thread(target=interrupt)
    killer.start()
    try:
        success = run(pipes, instance, body).success
    except dg.DagsterExecutionInterruptedError:
        success = False
    finally:
        over.set()
        killer.join(20)
    return success, found[0]
