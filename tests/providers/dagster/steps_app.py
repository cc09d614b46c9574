"""Jobs for the tests of the executor. Their ops note what they do in the directory ``TEST_PLACE``."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster_glidemq import glidemq_executor

PLACE = Path(os.environ.get("TEST_PLACE", "."))
LEASE = {"lease": 1.0, "poll_interval": 0.1}
WITH_LEASE = glidemq_executor.configured({**LEASE, "grace": 1.0})


def note(what: str) -> int:
    """Add a line to the file of an op; returns how many there are."""
    with (PLACE / what).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len((PLACE / what).read_text().splitlines())


@dg.op
def extract() -> int:
    """Say something, return something."""
    print("extracting to the log")  # noqa: T201  what ops do
    note("extract")
    return 2


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1), tags={"dagster-glidemq/priority": "5"})
def flaky(given: int) -> int:
    """Fail the first time."""
    if note("flaky") == 1:
        raise ValueError("not yet")
    return given * 10


@dg.op(out=dg.DynamicOut(int))
def spread(given: int) -> Iterator[dg.DynamicOutput[int]]:
    """As many outputs as asked for."""
    for number in range(given):
        yield dg.DynamicOutput(number, mapping_key=str(number))


@dg.op(tags={"dagster-glidemq/concurrency_key": "one", "dagster-glidemq/concurrency_limit": "1"})
def double(given: int) -> int:
    """Double."""
    return given * 2


@dg.op
def collect(doubled: list[int], flaked: int) -> int:
    """Add everything."""
    return sum(doubled) + flaked


@dg.job(executor_def=glidemq_executor)
def everything() -> None:
    """Values, a retry and dynamic outputs."""
    found = extract()
    collect(spread(found).map(double).collect(), flaky(found))


@dg.op
def killed() -> None:
    """End the process of the step."""
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@dg.job(executor_def=WITH_LEASE)
def dying() -> None:
    """A step whose process is killed."""
    killed()


@dg.op
def held(context: dg.OpExecutionContext) -> None:
    """Hold until interrupted; ``stubborn`` in the tags of the run goes on after it."""
    stubborn = "stubborn" in context.run.tags
    if stubborn:
        detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (PLACE / "detached").write_text(f"{detached.pid}\n")
    has_noted = False
    while not (PLACE / "release").exists():
        try:
            if not has_noted:
                has_noted = True
                note("held")
            time.sleep(0.05)
        except BaseException as exc:
            note(f"interrupted-{type(exc).__name__}")
            if not stubborn:
                raise
    note("released")


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def held_with_retry() -> None:
    """Hold the first time."""
    if note("held_with_retry") == 1:
        time.sleep(600)


@dg.job(executor_def=WITH_LEASE)
def holding() -> None:
    """A step that holds."""
    held()


@dg.job(executor_def=WITH_LEASE)
def holding_with_retry() -> None:
    """A step that holds the first time, with a retry."""
    held_with_retry()


@dg.job(executor_def=glidemq_executor.configured({"queue": "nobody", "start_timeout": 1.0}))
def unserved() -> None:
    """A step in a queue without a worker."""
    extract()


defs = dg.Definitions(jobs=[everything, dying, holding, holding_with_retry, unserved])
