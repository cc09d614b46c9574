"""The handlers of a round, and the middleware that writes every run of them to the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glidemq_orchestrate import Context, FlowNode, Handlers, Skip, Unrecoverable
from glidemq_orchestrate.errors import LibraryVersionMismatch, TransportError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.testing.chaos.recorder import Recorder, run_of
from glidemq_orchestrate.worker.handlers.context import FlowOfNode
from tests.chaos import in_process
from tests.chaos.in_process import decide, decide_element, say
from tests.chaos.plan import Plan, step_data


class ResultRecorder(Recorder):
    """Also writes which results every attempt gets and returns.

    A result names its run, so that whoever reads it later knows which run was accepted.
    """

    async def around(self, execution: Any, proceed: Any) -> Any:
        """Write, run, write."""
        attempt, context = execution.attempts[0], execution.contexts[0]
        if attempt.slice is not None:
            held = [attempt] * len(execution.contexts)
            return await self._around_elements(held, execution.contexts, proceed)
        if attempt.array_id:
            return await self._around_elements(execution.attempts, execution.contexts, proceed)
        step = step_data(context.data)
        given = runs_of(context.inputs)
        self.begin(
            attempt, context, inputs=given, slot=step.get("logicalTime"), activated=int(attempt.processed_on)
        )
        try:
            value = await proceed()
        except BaseException as exc:
            self.end(attempt, context, self.error_of(exc))
            raise
        result = value if isinstance(value, dict) else {"value": value}  # one of Spark tells more
        self.end(attempt, context, value=result["value"])
        passed = step.get("ends") != "refuse"
        return {"run": run_of(attempt), "node": context.node, "passed": passed, **result}

    async def _around_elements(
        self, attempts: Sequence[Attempt], contexts: Sequence[Context], proceed: Any
    ) -> Any:
        """The same for the elements of arrays that one call of a handler runs, with the attempt of each."""
        for attempt, context in zip(attempts, contexts, strict=True):
            given, activated = runs_of(context.inputs), int(attempt.processed_on)
            self.begin(attempt, context, inputs=given, slot=None, activated=activated)
        try:
            value = await proceed()
        except BaseException as exc:
            for attempt, context in zip(attempts, contexts, strict=True):
                self.end(attempt, context, self.error_of(exc))
            raise
        returned: list[Any] = []
        values = value if isinstance(value, list) else [value]
        for attempt, context, one in zip(attempts, contexts, values, strict=True):
            if isinstance(one, BaseException):
                self.end(attempt, context, self.error_of(one))
                returned.append(one)
            else:
                self.end(attempt, context, value=one)
                returned.append({"run": run_of(attempt, context.index), "value": one})
        return returned if isinstance(value, list) else returned[0]

    def error_of(self, exc: BaseException) -> str:
        """The name of an error in the ledger."""
        return type(exc).__name__


def runs_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The runs whose results a node got, by dependency; the result of an array names none."""
    return {name: value["run"] for name, value in inputs.items() if value and "run" in value}


async def _add(flow: FlowOfNode, nodes: list[FlowNode]) -> None:
    """Add nodes; again while the server cannot be reached, has no memory, or has other libraries."""
    while True:
        try:
            return await flow.add_nodes_async(nodes)
        except (TransportError, LibraryVersionMismatch):
            await asyncio.sleep(0.05)


class Steps:
    """The handlers: they behave as the data of their job says.

    Args:
        plan: What the nodes of each flow add while they run.
        cures: The folder with a file for each flow that has been retried.
    """

    def __init__(self, plan: Plan, cures: Path) -> None:
        self._plan, self._cures = plan, cures

    def registry(self) -> Handlers:
        """All of them, by job name."""
        made = Handlers()
        made.handler("async")(self.on_the_loop)
        made.handler("thread")(self.in_a_thread)
        made.handler("process", process=True)(in_process.node)
        made.handler("array")(self.element)
        made.handler("array-thread")(self.element_in_a_thread)
        if self._plan.may_prefetch:  # a worker with a batch handler holds more jobs than it runs
            made.batch_handler("array-batch", size=16)(self.elements)
        else:
            made.handler("array-batch")(self.element)
        made.handler("array-process", process=True)(in_process.element)
        made.handler("plain")(self.plain)
        made.handler("plain-process", process=True)(in_process.plain)
        made.handler("tick")(self.tick)
        made.handler("barrier")(self.barrier)
        return made

    async def on_the_loop(self, ctx: Context) -> int:
        """A node, which may add nodes."""
        data: Any = ctx.data
        await asyncio.sleep(data["ms"] / 1000)
        planned = self._plan.by_id[data["flow"]]
        if ctx.flow and (step := planned.all_steps[str(ctx.node)]).grows:
            await _add(ctx.flow, [more.node(planned.flow_id) for more in step.grows])
        say(ctx, data)
        return decide(ctx, self._cures)

    def in_a_thread(self, ctx: Context) -> int:
        """A node."""
        data: Any = ctx.data
        time.sleep(data["ms"] / 1000)
        say(ctx, data)
        return decide(ctx, self._cures)

    async def element(self, ctx: Context) -> int:
        """An element of an array."""
        data: Any = ctx.data
        await asyncio.sleep(data["ms"] / 1000)
        return decide_element(ctx, self._cures)

    def element_in_a_thread(self, ctx: Context) -> int:
        """An element of an array."""
        data: Any = ctx.data
        time.sleep(data["ms"] / 1000)
        return decide_element(ctx, self._cures)

    async def elements(self, contexts: list[Context]) -> list[Any]:
        """Several elements of an array."""
        data: Any = contexts[0].data
        await asyncio.sleep(data["ms"] / 1000)
        return [self._result(ctx) for ctx in contexts]

    def _result(self, ctx: Context) -> int | Exception:
        try:
            return decide_element(ctx, self._cures)
        except (RuntimeError, Skip, Unrecoverable) as exc:
            return exc

    async def plain(self, ctx: Context) -> int:
        """A job without a flow."""
        data: Any = ctx.data
        await asyncio.sleep(data["ms"] / 1000)
        return 1

    async def tick(self, ctx: Context) -> int:
        """A job of the schedule."""
        return 1

    async def barrier(self, ctx: Context) -> int:
        """Return once as many run as there are places in all workers."""
        data: Any = ctx.data
        (self._cures / f"barrier-{ctx.job_id}").touch()
        until = time.monotonic() + data["seconds"]
        while self._at_the_barrier() < data["places"]:
            if time.monotonic() > until or ctx.cancelled.is_set():
                raise Unrecoverable("not all places were given")
            await asyncio.sleep(0.05)
        return 1

    def _at_the_barrier(self) -> int:
        return len(list(self._cures.glob("barrier-*")))
