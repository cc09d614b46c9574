"""Jobs of steps that do nothing, for ``dagster_steps``: for each executor and each number in ``STEPS``."""

import os
from typing import Final

import dagster as dg
from dagster_glidemq import glidemq_executor

AT_ONCE: Final = int(os.environ.get("AT_ONCE", "2"))
EXECUTORS: Final = {
    "glidemq": glidemq_executor,
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor.configured({"max_concurrent": AT_ONCE}),
    "forkserver": dg.multiprocess_executor.configured(
        {"max_concurrent": AT_ONCE, "start_method": {"forkserver": {"preload_modules": [__name__]}}}
    ),
}


@dg.op
def nothing() -> None:
    """Do nothing."""


def job_of(way: str, count: int) -> dg.JobDefinition:
    """So many steps that depend on nothing."""

    @dg.job(name=f"{way}_{count}", executor_def=EXECUTORS[way])
    def steps() -> None:
        for number in range(count):
            nothing.alias(f"nothing_{number}")()

    return steps


defs = dg.Definitions(
    jobs=[
        job_of(way, int(count))
        for way in EXECUTORS
        for count in filter(None, os.environ.get("STEPS", "").split(","))
    ]
)
