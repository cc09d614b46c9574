"""Runs jobs, in three layers.

- ``services``: what users start.
- The modules of this package: ``feed`` fetches jobs and reports outcomes, ``runner`` holds the jobs,
  ``executor`` calls their handlers, ``renewing`` renews their leases.
- ``handlers``: the interface for user code, and what all parts share.

The public names are importable from here, and are loaded on first use.
"""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.context import Cancelled, Context
    from glidemq_orchestrate.worker.handlers.handler import Handlers
    from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware, Proceed
    from glidemq_orchestrate.worker.handlers.registered import JobEvent, Serving
    from glidemq_orchestrate.worker.handlers.signals import (
        BatchError,
        RetryLater,
        Skip,
        Suspend,
        Unrecoverable,
        WaitForChildren,
    )
    from glidemq_orchestrate.worker.services.broadcast_worker import BroadcastWorker
    from glidemq_orchestrate.worker.services.supervisor import Supervisor
    from glidemq_orchestrate.worker.services.worker import Worker
    from glidemq_orchestrate.worker.services.worker_processes import run_processes
    from glidemq_orchestrate.worker.usage_limits import TokenLimit

_PUBLIC: Final = {
    "handlers.context": ("Cancelled", "Context"),
    "handlers.handler": ("Handlers",),
    "handlers.middleware": ("Execution", "Middleware", "Proceed"),
    "handlers.registered": ("JobEvent", "Serving"),
    "handlers.signals": ("BatchError", "RetryLater", "Skip", "Suspend", "Unrecoverable", "WaitForChildren"),
    "services.broadcast_worker": ("BroadcastWorker",),
    "services.supervisor": ("Supervisor",),
    "services.worker": ("Worker",),
    "services.worker_processes": ("run_processes",),
    "usage_limits": ("TokenLimit",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "BatchError",
    "BroadcastWorker",
    "Cancelled",
    "Context",
    "Execution",
    "Handlers",
    "JobEvent",
    "Middleware",
    "Proceed",
    "RetryLater",
    "Serving",
    "Skip",
    "Supervisor",
    "Suspend",
    "TokenLimit",
    "Unrecoverable",
    "WaitForChildren",
    "Worker",
    "run_processes",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
