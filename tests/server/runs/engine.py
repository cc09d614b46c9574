"""A small orchestrator, to show what one needs: tasks with retries, a clear, a cancel, processes that die.

Its database is a file, so another process can go on where one was killed. As a program it executes the task
``nightly`` of a run, and waits for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from glidemq_orchestrate import AsyncFlowProducer, Flow, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.errors import FlowCancelled, FlowFailed, Superseded
from glidemq_orchestrate.runs import (
    AsyncOrchestratedRun,
    CountedAttempt,
    OrchestratedRun,
    Patience,
    check_size,
    collect,
    derived_id,
    owner_of,
)

MAX_RESULT_BYTES = 1_000


@dataclass(frozen=True)
class Task:
    """A task that runs a flow."""

    name: str
    spec: FlowSpec
    retries: int = 0
    worker_timeout: timedelta | None = None
    require_workers: bool = False


@dataclass
class Record:
    """What the database has of a task in a run."""

    clears: int = 0
    tries: int = 0
    state: str = "none"
    generation: int | None = None
    result: Any = None


class Engine:
    """Executes tasks; each process that does so has one, and all have the same database."""

    def __init__(self, url: str, database: Path, *, is_async: bool = False) -> None:
        self.url, self.database, self.is_async = url, database, is_async

    def read(self, run_id: str, name: str) -> Record:
        """The record of a task in a run."""
        every = json.loads(self.database.read_text()) if self.database.exists() else {}
        return Record(**every.get(f"{run_id}/{name}", {}))

    def write(self, run_id: str, name: str, record: Record) -> None:
        """Store it."""
        with self.database.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            every = json.loads(self.database.read_text()) if self.database.exists() else {}
            made = self.database.with_suffix(".new")
            made.write_text(json.dumps({**every, f"{run_id}/{name}": asdict(record)}))
            made.replace(self.database)

    def execute(self, run_id: str, task: Task, on_poll: Callable[[], object] = lambda: None) -> Any:
        """Run a task with its retries, or go on with what a process that died has left."""
        last = self.read(run_id, task.name).tries + task.retries + 1
        while True:
            record = self.read(run_id, task.name)
            record.tries, record.state, record.generation = record.tries + 1, "running", None
            self.write(run_id, task.name, record)
            try:
                found = self._follow(run_id, task, record, on_poll)
            except (FlowFailed, FlowCancelled):
                if record.tries < last:
                    continue
                self._ended(run_id, task, record, "failed")
                raise
            self._ended(run_id, task, record, "success", found)
            return found

    def clear(self, run_id: str, name: str) -> None:
        """Let the task run all of its flow when it is executed next."""
        record = self.read(run_id, name)
        record.clears, record.state = record.clears + 1, "none"
        self.write(run_id, name, record)

    def cancel(self, run_id: str, name: str, record: Record | None = None) -> None:
        """Cancel the flow of a task, from any process; ``record``: as the task was then."""
        record = record or self.read(run_id, name)
        run = OrchestratedRun(**self._run(run_id, name, record))
        run.generation = record.generation
        with FlowProducer(self.url) as producer:
            run.cancel(producer, "a user has cancelled the task")

    def flow_id(self, run_id: str, name: str) -> str:
        """The flow of a task in a run."""
        return derived_id("toy", run_id, name)

    def _run(self, run_id: str, name: str, record: Record, **more: Any) -> dict[str, Any]:
        task = self.flow_id(run_id, name)
        return {
            "attempt": CountedAttempt("toy", task, run=record.clears, number=record.tries),
            "flow_id": task,
            "owner": owner_of(f"toy run {run_id}, task {name}", timedelta(seconds=60), joins=False),
            "patience": Patience(20.0),
            **more,
        }

    def _follow(self, run_id: str, task: Task, record: Record, on_poll: Callable[[], object]) -> Any:
        def begun(flow: Any) -> None:
            record.generation = flow.generation
            self.write(run_id, task.name, record)

        fields = {"require_workers": task.require_workers, "worker_timeout": task.worker_timeout}
        made = self._run(run_id, task.name, record, **fields)
        if self.is_async:
            asyncio.run(self._wait(AsyncOrchestratedRun(**made), task, begun, on_poll))
        with FlowProducer(self.url) as producer:
            run = OrchestratedRun(**made)
            if not self.is_async:
                for _ in run.changes(producer, task.spec, on_begin=begun, on_poll=on_poll):
                    pass
            flow: Flow = run.current(producer)
            found = collect(flow, "leaves") or {}
            check_size(found, MAX_RESULT_BYTES)
            run.shown(flow, flow.status())
            return found

    async def _wait(
        self,
        run: AsyncOrchestratedRun,
        task: Task,
        begun: Callable[[Any], None],
        on_poll: Callable[[], object],
    ) -> None:
        async with AsyncFlowProducer(self.url) as producer:
            async for change in run.changes(producer, task.spec, on_begin=begun, on_poll=on_poll):
                found: Any = change.results()
                with suppress(Superseded):  # restarted since: the changes of the next generation follow
                    ended = {node.name for node in change.ended if node.state == "completed"}
                    assert set(await found) == ended

    def _ended(self, run_id: str, task: Task, record: Record, state: str, result: Any = None) -> None:
        now = self.read(run_id, task.name)
        if now.clears == record.clears:  # else it was cleared since
            record.state, record.result = state, result
            self.write(run_id, task.name, record)


def nightly(job: str = "count", **fields: Any) -> Task:
    """extract counts, and load does what the job does."""
    nodes = [
        FlowNode("extract", queue="etl", job="count"),
        FlowNode("load", queue="etl", job=job, after=["extract"]),
    ]
    return Task("nightly", FlowSpec("nightly", nodes), **fields)


if __name__ == "__main__":
    Engine(sys.argv[1], Path(sys.argv[2])).execute(sys.argv[3], nightly("wait"))
