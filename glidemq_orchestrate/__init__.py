"""Run a DAG as one flow of jobs on Valkey, in the format of glide-mq.

Importing this package loads nothing else: every public name is resolved on first use, so a DAG file that
imports it stays cheap to parse. ``__init__.pyi`` declares the same names for type checkers.
"""

import logging
from typing import Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

__version__ = "0.1.0"

# What users need, by what they do with it; everything else is importable from where it is defined.
_PUBLIC: Final = {
    # a server, and what is done on it
    "clients.client": ("AsyncClient", "Client"),
    "clients.queue": ("AsyncQueue", "Queue"),
    "clients.flows": ("AsyncFlow", "AsyncFlowProducer", "Flow", "FlowProducer"),
    "clients.events": ("AsyncEventReader", "EventReader"),
    "clients.schedules": ("AsyncSchedules", "Schedules"),
    "clients.broadcast": ("AsyncBroadcast", "Broadcast"),
    "settings": ("ConnectionSettings",),
    "embedded": ("EmbeddedServer",),
    # flows
    "flows.spec": ("FlowNode", "FlowSpec"),
    "flows.status": ("FlowOutcome", "FlowState", "FlowStatus", "NodeStatus", "Wait"),
    "flows.dependencies": ("Dependency", "Rule"),
    "flows.pattern": ("chain", "chord", "group", "map_over", "nested"),
    "flows.checked": ("check_flow",),
    "flows.owner": ("Owner",),
    "flows.watched": ("FlowChange", "NodeChange"),
    # jobs, schedules and events
    "jobs.adding": ("NewJob",),
    "jobs.options": ("JobOptions",),
    "jobs.option_values": ("Backoff", "Deduplication", "Ordering", "RateLimit", "Keep"),
    "jobs.usage": ("Usage",),
    "jobs.job": ("Job",),
    "jobs.states": ("JobState",),
    "schedules.schedule": ("JobTemplate", "Schedule"),
    "events": ("Event", "EventFilter"),
    "foundation.durations": ("Duration",),
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
    "worker.handlers.middleware": ("Execution", "Middleware"),
    "worker.handlers.registered": ("JobEvent", "Serving"),
    "worker.usage_limits": ("TokenLimit",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604  names of the table above

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


logging.getLogger(__name__).addHandler(logging.NullHandler())
