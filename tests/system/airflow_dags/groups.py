"""The groups of the system test. Its functions run on the worker, which imports this file as ``groups``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

NUMBERS = 200


def gate(name: str) -> Path:
    """A file by which the test tells handlers what to do."""
    return Path(os.environ["GATES"]) / name


@task
def before() -> Any:
    return {"base": 1000}


@task
def load(base: dict[str, int]) -> dict[str, int]:
    return {"base": base["base"], "stamp": time.time_ns()}


@task
def left(loaded: dict[str, int]) -> int:
    return loaded["base"] + 1


@task(retries=2, retry_delay=0)
def right(base: int) -> int:
    if not gate("right").exists():
        gate("right").touch()
        raise RuntimeError("not the first time")
    return base + 2


@task
def square(number: int) -> int:
    return number * number


@task
def total(squares: list[int], sides: list[int], stamp: int) -> dict[str, int]:
    return {"sum": sum(squares) + sum(sides), "count": len(squares), "loaded": stamp, "stamp": time.time_ns()}


@task
def after(result: dict[str, int], squares: list[int]) -> list[int]:
    assert isinstance(result, dict)
    return [result["sum"], len(squares), squares[3], result["loaded"], result["stamp"]]


with DAG("diamond", schedule=None, catchup=False):
    given: Any = before()
    with GlideMQTaskGroup("etl", queue_name="system") as diamond:
        loaded: Any = load(given)
        sides: Any = [left(loaded), right(loaded["base"])]
        squares: Any = square.expand(number=list(range(NUMBERS)))
        loaded >> squares
        summed: Any = total(squares, sides, loaded["stamp"])
    after(summed, squares)


@task
def maybe(name: str, value: Any = None) -> str:
    """Does what the gate of its name says: fails, skips or waits; else returns a new stamp."""
    if gate(f"fail {name}").exists():
        raise RuntimeError(f"{name} fails")
    while gate(f"wait {name}").exists():
        time.sleep(0.05)
    return f"{name} {time.time_ns()}"


with DAG("line", schedule=None, catchup=False), GlideMQTaskGroup("etl", queue_name="system"):
    first: Any = maybe.override(task_id="first")("first")
    second: Any = maybe.override(task_id="second")("second", first)
    third: Any = maybe.override(task_id="third")("third", second)
    skipped = GlideMQOperator(task_id="skips", queue_name="system", job="skips")
    skipped >> GlideMQOperator(task_id="also_skipped", queue_name="system", job="echo")
    [third, skipped] >> GlideMQOperator(
        task_id="last", queue_name="system", job="echo", data="last", trigger_rule="all_done"
    )


@task
def numbers() -> list[int]:
    return list(range(5))


with DAG("grown", schedule=None, catchup=False):
    with GlideMQTaskGroup("etl", queue_name="system", eager=True):
        listed: Any = numbers()
        doubled: Any = square.override(task_id="doubled")
        doubled = doubled.expand(number=listed)
        added: Any = total(doubled, [1], 0)
    after(added, doubled)
