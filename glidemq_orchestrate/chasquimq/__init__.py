"""Queues in the format of ChasquiMQ 1.3: envelopes, delayed and repeating jobs, keys, clients.

Importing this package loads nothing else: every public name is resolved on first use.
"""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.chasquimq.adding import ChasquiJob
    from glidemq_orchestrate.chasquimq.bridge import ChasquiBridge
    from glidemq_orchestrate.chasquimq.dead_letters import ChasquiDeadLetter, DeadReason
    from glidemq_orchestrate.chasquimq.envelope import ChasquiBackoff
    from glidemq_orchestrate.chasquimq.events import ChasquiEvent, ChasquiEventKind
    from glidemq_orchestrate.chasquimq.operations import ChasquiCounts
    from glidemq_orchestrate.chasquimq.queue import AsyncChasquiQueue, ChasquiQueue
    from glidemq_orchestrate.chasquimq.schedules import ChasquiSchedule
    from glidemq_orchestrate.chasquimq.worker import ChasquiWorker

_PUBLIC: Final = {
    "adding": ("ChasquiJob",),
    "bridge": ("ChasquiBridge",),
    "dead_letters": ("ChasquiDeadLetter", "DeadReason"),
    "envelope": ("ChasquiBackoff",),
    "events": ("ChasquiEvent", "ChasquiEventKind"),
    "operations": ("ChasquiCounts",),
    "queue": ("AsyncChasquiQueue", "ChasquiQueue"),
    "schedules": ("ChasquiSchedule",),
    "worker": ("ChasquiWorker",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "AsyncChasquiQueue",
    "ChasquiBackoff",
    "ChasquiBridge",
    "ChasquiCounts",
    "ChasquiDeadLetter",
    "ChasquiEvent",
    "ChasquiEventKind",
    "ChasquiJob",
    "ChasquiQueue",
    "ChasquiSchedule",
    "ChasquiWorker",
    "DeadReason",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
