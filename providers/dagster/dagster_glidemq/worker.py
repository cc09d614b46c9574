"""Runs steps and runs of Dagster: ``glidemq worker --app dagster_glidemq.worker --queue dagster-steps``.

The worker needs what ``dagster api execute_step`` needs on its machine: the code location, its environment,
and ``DAGSTER_HOME`` with the instance whose run launcher or executor has queued the job. It starts a process
that imports the code once, and forks a child for each step.

Use separate workers for runs and steps: a run waits for its steps, so runs in all slots of a worker would
never end.
"""

from __future__ import annotations

from typing import Final

from dagster_glidemq.step_job import RUN_JOB, STEP_JOB, RunJob, StepJob
from dagster_glidemq.warm.processes import WarmProcesses
from glidemq_orchestrate import Context, Handlers, Unrecoverable

handlers: Final = Handlers(single_process=True)  # steps have processes of their own, forked from one
_processes: Final = WarmProcesses()


@handlers.on_start
def warm_up() -> None:
    """Start importing before the first job arrives."""
    _processes.warm_up()


@handlers.on_stop
def close() -> None:
    """End the warm processes."""
    _processes.close()


@handlers.handler(STEP_JOB, at_most_once=True)
def run_step(ctx: Context) -> None:
    """Run a step to its end; its outcome is in the event log of its run.

    Raises:
        Unrecoverable: The process of the step did not end by itself, or could not start.
    """
    try:
        job = StepJob.read(ctx.data)
    except ValueError as exc:
        raise Unrecoverable(f"job {ctx.job_id} is not a Dagster step: {exc}") from None
    _processes.run_step(job, ctx.cancelled)


@handlers.handler(RUN_JOB, at_most_once=True)
def run_run(ctx: Context) -> None:
    """Run a run to its end, or resume a run whose worker was lost.

    Raises:
        Unrecoverable: The run failed, or its process did not end by itself, or could not start.
    """
    try:
        job = RunJob.read(ctx.data)
    except ValueError as exc:
        raise Unrecoverable(f"job {ctx.job_id} is not a Dagster run: {exc}") from None
    _processes.run_run(job, ctx.job_id, ctx.cancelled)
