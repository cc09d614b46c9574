"""The middleware of the workers of ``run_chaos``: writes every run of a handler, and lets strikes happen."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.testing.chaos.effects import running
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.striker import Striker
from glidemq_orchestrate.testing.chaos.strikes import Moment
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.execution import Execution
from glidemq_orchestrate.worker.handler import JobEvent
from glidemq_orchestrate.worker.middleware.middleware import Middleware, Proceed

MOST_LEAVES: Final = 1000


class Recorder(Middleware):
    """See the module."""

    def __init__(self, ledger: Ledger, striker: Striker) -> None:
        self._ledger, self._striker = ledger, striker

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Write, strike, run, write, strike."""
        jobs = list(zip(execution.attempts, execution.contexts, strict=True))
        for attempt, context in jobs:
            self._ledger.write(
                "begin", run=_run(attempt), flow=context.flow_id, node=context.node, queue=context.queue,
                job=context.job_id, name=context.name, attempt=context.attempt,
            )  # fmt: skip
            await asyncio.sleep(self._striker.strike(context, Moment.START))
        timers = [self._midway(context) for _, context in jobs]
        try:
            with ExitStack() as stack:
                if len(jobs) == 1:
                    stack.enter_context(running(jobs[0][1], self._striker.owner))
                value = await proceed()
        except BaseException as exc:
            for attempt, _ in jobs:
                self._ledger.write("end", run=_run(attempt), error=type(exc).__name__)
            raise
        finally:
            for timer in timers:
                timer.cancel()
        values = value if len(jobs) > 1 and isinstance(value, list) else [value] * len(jobs)
        for (attempt, context), own in zip(jobs, values, strict=False):
            self._ledger.write("end", run=_run(attempt), error="", leaves=leaves(own))
            if strike := self._striker.of(context, Moment.MIDWAY):  # it returned before
                await asyncio.sleep(self._striker.act(context, strike, self._striker.owner))
            await asyncio.sleep(self._striker.strike(context, Moment.RETURNED))
        return value

    def on_event(self, event: JobEvent) -> None:
        """Write what the server has accepted or refused."""
        if event.kind != "active":
            self._ledger.write(event.kind, flow=event.flow_id, node=event.node, job=event.job_id)

    def _midway(self, context: Context) -> asyncio.TimerHandle:
        strike = self._striker.of(context, Moment.MIDWAY)
        loop = asyncio.get_running_loop()
        if strike is None:
            return loop.call_later(0, lambda: None)
        return loop.call_later(strike.after, self._striker.act, context, strike, self._striker.owner)


def leaves(value: Any) -> dict[str, str]:
    """Digests of the parts of a result by their paths: equal results have equal ones, and none can be read.

    Of a result with more than 1,000 parts, or that is not JSON, there is one digest.
    """
    found: dict[str, str] = {}
    for path, leaf in _walk(value, "$"):
        found[path] = _digest(leaf)
        if len(found) > MOST_LEAVES:
            return {"$": _digest(value)}
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name in value:
            yield from _walk(value[name], f"{path}.{name}")
    elif isinstance(value, list | tuple) and value:
        for at, item in enumerate(value):
            yield from _walk(item, f"{path}[{at}]")
    else:
        yield path, value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda other: type(other).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run(attempt: Attempt) -> str:
    return f"{attempt.token}:{attempt.job_id}"
