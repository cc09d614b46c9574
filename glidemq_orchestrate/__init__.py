"""Run a DAG as one flow of jobs on Valkey, in the format of glide-mq.

Importing this package loads nothing else: every public name is resolved on first use, so a DAG file that
imports it stays cheap to parse. ``__init__.pyi`` declares the same names for type checkers.
"""

import logging
from typing import Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

__version__ = "0.1.0"

# What users write, by what they do with it. What they get back, and what few need, is in ``flows``, ``jobs``,
# ``events``, ``worker`` and ``clients``: see docs/reference/python.md.
_PUBLIC: Final = {
    # a server, and what is done on it
    "clients.client": ("AsyncClient", "Client"),
    "clients.queue": ("AsyncQueue", "Queue"),
    "clients.flows": ("AsyncFlow", "AsyncFlowProducer", "Flow", "FlowProducer"),
    "clients.events": ("AsyncEventReader", "EventReader"),
    "clients.broadcast": ("AsyncBroadcast", "Broadcast"),
    "settings": ("ConnectionSettings",),
    "embedded": ("EmbeddedServer",),
    # flows
    "flows.spec": ("ArrayNode", "FlowNode", "FlowSpec"),
    "flows.status": ("FlowState",),
    "flows.dependencies": ("Dependency", "Rule"),
    "flows.checked": ("check_flow",),
    "flows.owner": ("Owner",),
    # jobs and schedules
    "jobs.adding": ("NewJob",),
    "jobs.options": ("JobOptions",),
    "jobs.option_values": ("Backoff", "Deduplication", "Ordering", "RateLimit", "Keep"),
    "jobs.states": ("JobState",),
    "schedules.schedule": ("JobTemplate", "Schedule"),
    # workers and handlers
    "worker.services.worker": ("Worker",),
    "worker.services.broadcast_worker": ("BroadcastWorker",),
    "worker.handlers.handler": ("Handlers",),
    "worker.handlers.context": ("Context",),
    "worker.handlers.signals": (
        "BatchError",
        "RetryLater",
        "Skip",
        "Suspend",
        "Unrecoverable",
        "WaitForChildren",
    ),
    "worker.handlers.middleware": ("Middleware",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604  names of the table above

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


logging.getLogger(__name__).addHandler(logging.NullHandler())
