"""The middleware of the workers of ``run_chaos``: records every run of a handler, and triggers strikes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from glidemq_orchestrate.foundation.names import is_named
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.testing.chaos.digests import leaves
from glidemq_orchestrate.testing.chaos.effects import Marker, running
from glidemq_orchestrate.testing.chaos.strikes import Moment
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware, Proceed
from glidemq_orchestrate.worker.handlers.named_call import is_allowed
from glidemq_orchestrate.worker.handlers.registered import JobEvent


class Recorder(Middleware):
    """Records runs and triggers strikes."""

    def __init__(self, marker: Marker, handlers: Handlers) -> None:
        self._ledger, self._striker, self._salt = marker.ledger, marker.striker, marker.salt
        self._batches = {name for name, one in handlers.registered.items() if one.batch_size}

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Record the start, strike, run the handler, record its end, strike."""
        jobs = list(zip(execution.attempts, execution.contexts, strict=True))
        is_batch = jobs[0][1].name in self._batches
        for attempt, context in jobs:
            self._ledger.write(
                "begin", run=_run(attempt), flow=context.flow_id, node=context.node, queue=context.queue,
                job=context.job_id, name=_step(context), attempt=context.attempt,
            )  # fmt: skip
            await asyncio.sleep(self._striker.strike(context, Moment.START))
        timers = [self._midway(context) for _, context in jobs]
        try:
            with ExitStack() as stack:
                if not is_batch:
                    stack.enter_context(running(jobs[0][1], self._striker.owner))
                value = await proceed()
        except BaseException as exc:
            for attempt, _ in jobs:
                self._ledger.write("end", run=_run(attempt), error=type(exc).__name__)
            raise
        finally:
            for timer in timers:
                timer.cancel()
        values = value if is_batch and isinstance(value, list) else [value] * len(jobs)
        for (attempt, context), own in zip(jobs, values, strict=False):
            self._ledger.write("end", run=_run(attempt), error="", leaves=leaves(own, self._salt))
            if strike := self._striker.of(context, Moment.MIDWAY):  # the handler was faster
                await asyncio.sleep(self._striker.act(context, strike, self._striker.owner))
            await asyncio.sleep(self._striker.strike(context, Moment.RETURNED))
        return value

    def on_event(self, event: JobEvent) -> None:
        """Record the server's verdict."""
        if event.kind != "active":
            self._ledger.write(event.kind, flow=event.flow_id, node=event.node, job=event.job_id)

    def _midway(self, context: Context) -> asyncio.TimerHandle:
        strike = self._striker.of(context, Moment.MIDWAY)
        loop = asyncio.get_running_loop()
        if strike is None:
            return loop.call_later(0, lambda: None)
        return loop.call_later(strike.after, self._striker.act, context, strike, self._striker.owner)


def _step(context: Context) -> str:
    """The name of the job, or the import path if it calls a function by that, as Spark steps do."""
    function = context.data.get("callable") if isinstance(context.data, dict) else None
    if not isinstance(function, str) or not is_named(function):
        return context.name
    return function if is_allowed(function.partition(":")[0], context.allow_import) else context.name


def _run(attempt: Attempt) -> str:
    return f"{attempt.token}:{attempt.job_id}"
