"""The handlers of a round, and the middleware that writes every run of them to the ledger."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from glidemq_orchestrate import Context, FlowNode, Handlers, Unrecoverable
from glidemq_orchestrate.errors import LibraryVersionMismatch, TransportError
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.worker import JobEvent, Middleware
from glidemq_orchestrate.worker.handlers.context import FlowOfNode
from tests.chaos import in_process
from tests.chaos.in_process import decide, say
from tests.chaos.plan import Plan, step_data


class Recorder(Middleware):
    """Writes the begin and the end of every run with the token of its attempt, and what was accepted.

    A result names its run, so that whoever reads it later knows which run was accepted.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[tuple[str, str], str] = {}

    async def around(self, execution: Any, proceed: Any) -> Any:
        """Write, run, write."""
        attempt, context = execution.attempts[0], execution.contexts[0]
        step = step_data(context.data)
        run = f"{attempt.token}:{attempt.job_id}"
        about = {"run": run, "queue": attempt.queue, "job": attempt.job_id}
        self._runs[attempt.queue, attempt.job_id] = run
        given = {name: value["run"] for name, value in context.inputs.items() if value}
        self._ledger.write(
            "begin", **about, flow=context.flow_id, node=context.node, attempt=context.attempt, inputs=given,
            slot=step.get("logicalTime"), activated=int(attempt.processed_on),
            epoch=attempt.epoch,
        )  # fmt: skip
        try:
            value = await proceed()
        except BaseException as exc:
            self._ledger.write("end", **about, error=type(exc).__name__)
            raise
        result = value if isinstance(value, dict) else {"value": value}  # one of Spark tells more
        self._ledger.write("end", **about, error="", value=result["value"])
        return {"run": run, "node": context.node, "passed": step.get("ends") != "refuse", **result}

    def on_event(self, event: JobEvent) -> None:
        """Write what the server has accepted or refused."""
        if event.kind != "active":
            run = self._runs.get((event.queue, event.job_id))
            self._ledger.write(
                event.kind, run=run, queue=event.queue, job=event.job_id, flow=event.flow_id, node=event.node
            )


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
