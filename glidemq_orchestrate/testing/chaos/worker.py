"""A worker of a campaign: ``python -m glidemq_orchestrate.testing.chaos.worker``, started by ``stage``.

Handlers with ``process=True`` import this module too, before their own, so marks also count in their
processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.foundation.functions import is_named
from glidemq_orchestrate.testing.chaos.effects import InProcess, Marker, install, leaves, running
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.recorder import Recorder
from glidemq_orchestrate.testing.chaos.strikes import VARIABLE, Moment, Setup, Striker, ledger_of, struck_of
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Execution, Proceed
from glidemq_orchestrate.worker.handlers.named_call import is_allowed
from glidemq_orchestrate.worker.services.apps import load_handlers, package_of
from glidemq_orchestrate.worker.services.worker import Worker

NOT_STARTED: Final = 75
MANY: Final = 1_000_000


def prepare(folder: Path) -> tuple[Setup, Marker]:
    """Make marks and strikes work in this process."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    setup, ledger = Setup.read(folder), Ledger(ledger_of(folder), "worker")
    marker = Marker(ledger, Striker(struck_of(folder), ledger, setup.strikes, os.getpid()), setup.salt)
    install(marker, setup.effects)
    return setup, marker


def serve(setup: Setup, marker: Marker) -> None:
    """Run jobs until stopped; the stage restarts a killed worker."""
    handlers = Handlers()
    for app in setup.apps:
        handlers.include(load_handlers(app))
    worker = Worker(
        setup.url, queues=setup.queues, concurrency=setup.concurrency, handlers=_marking(handlers),
        lease=timedelta(seconds=setup.lease_seconds), max_stalled=MANY, prefetch=0,
        shutdown_timeout=timedelta(seconds=1),
        allow_import=setup.allow_import or [package_of(app) for app in setup.apps],
        middleware=[StrikingRecorder(marker, handlers)],
    )  # fmt: skip
    try:
        worker.run()
    except TransportError:
        if worker.ready.is_set():
            raise
        sys.exit(NOT_STARTED)  # the server was killed just now


def _marking(handlers: Handlers) -> Handlers:
    """The same handlers; marks also count in handlers that run in processes."""
    made = Handlers()
    for name in handlers.names:
        registered = handlers.registered[name]
        if registered.in_process:
            registered = replace(registered, function=InProcess(registered.function))
        made.register(name, registered)
    made.backoffs.update(handlers.backoffs)
    made.job_hooks += handlers.job_hooks
    made.start_hooks += handlers.start_hooks
    made.stop_hooks += handlers.stop_hooks
    return made


def main(folder: Path) -> None:
    """Run the worker."""
    try:
        serve(*prepare(folder))
    except GlideMQError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")  # other exceptions end it with a traceback in the log


class StrikingRecorder(Recorder):
    """Records attempts and triggers strikes."""

    def __init__(self, marker: Marker, handlers: Handlers) -> None:
        super().__init__(marker.ledger)
        self._striker, self._salt = marker.striker, marker.salt
        self._batches = {name for name, one in handlers.registered.items() if one.batch_size}

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Record the start and the end of the handler, and trigger strikes before and after it."""
        several = len(execution.contexts) > len(execution.attempts)  # elements of one slice of an array
        attempts = [execution.attempts[0]] * len(execution.contexts) if several else execution.attempts
        jobs = list(zip(attempts, execution.contexts, strict=True))
        is_batch = jobs[0][1].name in self._batches
        for attempt, context in jobs:
            self.begin(attempt, context, name=_step(context))
            await asyncio.sleep(self._striker.strike(context, Moment.START))
        timers = [self._midway(context) for _, context in jobs]
        try:
            with ExitStack() as stack:
                if not is_batch:
                    stack.enter_context(running(jobs[0][1], self._striker.owner))
                value = await proceed()
        except BaseException as exc:
            for attempt, context in jobs:
                self.end(attempt, context, type(exc).__name__)
            raise
        finally:
            for timer in timers:
                timer.cancel()
        values = value if is_batch and isinstance(value, list) else [value] * len(jobs)
        for (attempt, context), own in zip(jobs, values, strict=False):
            self.end(attempt, context, leaves=leaves(own, self._salt))
            if strike := self._striker.of(context, Moment.MIDWAY):  # the handler was faster
                await asyncio.sleep(self._striker.act(context, strike, self._striker.owner))
            await asyncio.sleep(self._striker.strike(context, Moment.RETURNED))
        return value

    def _midway(self, context: Context) -> asyncio.TimerHandle:
        strike = self._striker.of(context, Moment.MIDWAY)
        loop = asyncio.get_running_loop()
        if strike is None:
            return loop.call_later(0, lambda: None)
        return loop.call_later(strike.after, self._striker.act, context, strike, self._striker.owner)


def _step(context: Context) -> str:
    """The name of the job, or the import path of its function, as for Spark steps."""
    function = context.data.get("callable") if isinstance(context.data, dict) else None
    if not isinstance(function, str) or not is_named(function):
        return context.name
    return function if is_allowed(function.partition(":")[0], context.allow_import) else context.name


if _folder := os.environ.get(VARIABLE):
    if __name__ == "__main__":
        main(Path(_folder))
    elif __name__ == "__mp_main__":
        prepare(Path(_folder))
