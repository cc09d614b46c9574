"""The clients, each with an awaitable twin. Names are resolved on first use."""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.clients.broadcast import AsyncBroadcast, Broadcast
    from glidemq_orchestrate.clients.client import AsyncClient, Client
    from glidemq_orchestrate.clients.events import AsyncEventReader, EventReader
    from glidemq_orchestrate.clients.flows import (
        AsyncFlow,
        AsyncFlowArray,
        AsyncFlowProducer,
        Flow,
        FlowArray,
        FlowProducer,
    )
    from glidemq_orchestrate.clients.queue import AsyncQueue, HandlerCode, Queue, WorkerInfo
    from glidemq_orchestrate.clients.schedules import AsyncSchedules, Schedules

_PUBLIC: Final = {
    "broadcast": ("AsyncBroadcast", "Broadcast"),
    "client": ("AsyncClient", "Client"),
    "events": ("AsyncEventReader", "EventReader"),
    "flows": ("AsyncFlow", "AsyncFlowArray", "AsyncFlowProducer", "Flow", "FlowArray", "FlowProducer"),
    "queue": ("AsyncQueue", "HandlerCode", "Queue", "WorkerInfo"),
    "schedules": ("AsyncSchedules", "Schedules"),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "AsyncBroadcast",
    "AsyncClient",
    "AsyncEventReader",
    "AsyncFlow",
    "AsyncFlowArray",
    "AsyncFlowProducer",
    "AsyncQueue",
    "AsyncSchedules",
    "Broadcast",
    "Client",
    "EventReader",
    "Flow",
    "FlowArray",
    "FlowProducer",
    "HandlerCode",
    "Queue",
    "Schedules",
    "WorkerInfo",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
