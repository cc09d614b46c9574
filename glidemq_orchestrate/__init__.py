"""Run a DAG as one flow of jobs on Valkey, in the format of glide-mq.

Importing this package opens nothing and imports no driver: a DAG file that imports it stays cheap to parse.
What runs jobs, and asyncio with it, is loaded when it is first used.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.clients.broadcast import AsyncBroadcast, Broadcast
from glidemq_orchestrate.clients.events import AsyncEventReader, Event, EventFilter, EventKind, EventReader
from glidemq_orchestrate.clients.producer import AsyncFlow, AsyncFlowProducer, Flow, FlowProducer
from glidemq_orchestrate.clients.queue import AsyncQueue, AsyncQueues, NewJob, Queue, Queues, Usage
from glidemq_orchestrate.clients.schedulers import (
    AsyncSchedulers,
    CatchUp,
    JobTemplate,
    Schedule,
    SchedulerEntry,
    Schedulers,
)
from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.pattern import chain, chord, group, map_over, nested
from glidemq_orchestrate.flows.rules import Dependency, OnFailure, Rule
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowSpec, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.importing import importing as _importing
from glidemq_orchestrate.jobs.backoff import Backoff
from glidemq_orchestrate.jobs.job import Job, JobState
from glidemq_orchestrate.jobs.options import (
    Deduplication,
    Fallback,
    JobOptions,
    JobRef,
    Keep,
    Ordering,
    RateLimit,
    TokenBucket,
)
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker.handler import (
    BatchError,
    Context,
    Handlers,
    JobEvent,
    RetryLater,
    Skip,
    Suspend,
    Unrecoverable,
    WaitForChildren,
)

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.broadcast import BroadcastWorker
    from glidemq_orchestrate.worker.tokens import TokenLimit
    from glidemq_orchestrate.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncBroadcast",
    "AsyncEventReader",
    "AsyncFlow",
    "AsyncFlowProducer",
    "AsyncQueue",
    "AsyncQueues",
    "AsyncSchedulers",
    "Backoff",
    "BatchError",
    "Broadcast",
    "BroadcastWorker",
    "CatchUp",
    "ConnectionSettings",
    "Context",
    "Deduplication",
    "Dependency",
    "EmbeddedServer",
    "Event",
    "EventFilter",
    "EventKind",
    "EventReader",
    "Fallback",
    "Flow",
    "FlowChange",
    "FlowNode",
    "FlowOutcome",
    "FlowProducer",
    "FlowSpec",
    "FlowState",
    "FlowStatus",
    "Handlers",
    "Job",
    "JobEvent",
    "JobOptions",
    "JobRef",
    "JobState",
    "JobTemplate",
    "Keep",
    "NewJob",
    "NodeChange",
    "NodeStatus",
    "OnFailure",
    "Ordering",
    "Queue",
    "Queues",
    "RateLimit",
    "RetryLater",
    "Rule",
    "Schedule",
    "SchedulerEntry",
    "Schedulers",
    "Skip",
    "Suspend",
    "TokenBucket",
    "TokenLimit",
    "Unrecoverable",
    "Usage",
    "WaitForChildren",
    "Worker",
    "chain",
    "chord",
    "group",
    "map_over",
    "nested",
]

_ON_FIRST_USE: Final = {
    "BroadcastWorker": "worker.broadcast",
    "TokenLimit": "worker.tokens",
    "Worker": "worker.worker",
}

if not TYPE_CHECKING:  # type checkers would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _importing():
            found = globals()[name] = getattr(import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_FIRST_USE})


logging.getLogger(__name__).addHandler(logging.NullHandler())
