"""A worker of a campaign: ``python -m glidemq_orchestrate.testing.chaos.worker``, started by ``stage``.

Handlers with ``process=True`` import this module too, before their own, so marks also count in their
processes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.testing.chaos.effects import InProcess, Marker, install
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.recorder import Recorder
from glidemq_orchestrate.testing.chaos.setup import VARIABLE, Setup, ledger_of, struck_of
from glidemq_orchestrate.testing.chaos.striker import Striker
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.services.worker import Worker, load_handlers, package_of

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
        lock_duration=timedelta(seconds=setup.lease_seconds), max_stalled=MANY, prefetch=0,
        shutdown_timeout=timedelta(seconds=1),
        allow_import=setup.allow_import or [package_of(app) for app in setup.apps],
        middleware=[Recorder(marker, handlers)],
    )  # fmt: skip
    try:
        worker.run()
    except TransportError:
        if worker.ready.is_set():
            raise
        sys.exit(NOT_STARTED)  # the server was killed just now


def _marking(handlers: Handlers) -> Handlers:
    """The same handlers, but marks also count in those that run in processes."""
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


if _folder := os.environ.get(VARIABLE):
    if __name__ == "__main__":
        main(Path(_folder))
    elif __name__ == "__mp_main__":
        prepare(Path(_folder))
