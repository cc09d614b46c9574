"""Run a DAG as one flow of jobs on Valkey, in the format of glide-mq.

Importing this package loads nothing else: every public name is resolved on first use, so a DAG file that
imports it stays cheap to parse. ``__init__.pyi`` declares the same names for type checkers.
"""

import logging
from importlib import import_module
from typing import Final

from glidemq_orchestrate.foundation.importing import importing as _importing

__version__ = "0.1.0"

_PUBLIC: Final = {
    "events": ("Event", "EventFilter", "EventKind"),
    "jobs.adding": ("NewJob",),
    "clients.broadcast": ("AsyncBroadcast", "Broadcast"),
    "clients.client": ("AsyncClient", "Client"),
    "clients.events": ("AsyncEventReader", "EventReader"),
    "clients.flows": ("AsyncFlow", "AsyncFlowProducer", "Flow", "FlowProducer"),
    "clients.queue": ("AsyncQueue", "Queue"),
    "clients.schedulers": ("AsyncSchedulers", "Schedulers"),
    "embedded": ("EmbeddedServer",),
    "foundation.durations": ("Duration",),
    "flows.change": ("FlowChange", "NodeChange"),
    "flows.checked": ("check_flow",),
    "flows.owner": ("Owner",),
    "flows.pattern": ("chain", "chord", "group", "map_over", "nested"),
    "flows.rules": ("Dependency", "OnFailure", "Rule"),
    "flows.waits": ("Wait",),
    "flows.spec": ("FlowNode", "FlowOutcome", "FlowSpec", "FlowState", "FlowStatus", "NodeStatus"),
    "jobs.backoff": ("Backoff",),
    "jobs.deduplication": ("Deduplication",),
    "jobs.job": ("Job",),
    "jobs.options": ("Fallback", "JobOptions", "JobRef"),
    "jobs.ordering": ("Ordering", "RateLimit", "TokenBucket"),
    "jobs.retention": ("Keep",),
    "schedules.schedule": ("CatchUp", "JobTemplate", "Schedule", "SchedulerEntry"),
    "jobs.states": ("JobState",),
    "jobs.usage": ("Usage",),
    "settings": ("ConnectionSettings",),
    "worker.services.broadcast_worker": ("BroadcastWorker",),
    "worker.handlers.context": ("Context",),
    "worker.handlers.execution": ("Execution",),
    "worker.handlers.handler": ("Handlers", "JobEvent", "Serving"),
    "worker.handlers.middleware": ("Middleware",),
    "worker.middleware.tokens": ("TokenLimit",),
    "worker.handlers.signals": (
        "BatchError",
        "RetryLater",
        "Skip",
        "Suspend",
        "Unrecoverable",
        "WaitForChildren",
    ),
    "worker.services.worker": ("Worker",),
}
_HOMES: Final = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604  names of the table above


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _importing():
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


logging.getLogger(__name__).addHandler(logging.NullHandler())
