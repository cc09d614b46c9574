"""Flows: what calls return, ready-made patterns, and the policies for failures.

``FlowSpec``, ``FlowNode`` and whatever else every flow needs are in ``glidemq_orchestrate`` itself. Names are
resolved on first use.
"""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.dependencies import OnFailure
    from glidemq_orchestrate.flows.elements import ArrayCounts, FailedElement
    from glidemq_orchestrate.flows.pattern import chain, chord, group, map_over, nested
    from glidemq_orchestrate.flows.status import FlowId, FlowOutcome, FlowStatus, NodeStatus, Wait
    from glidemq_orchestrate.flows.watched import FlowChange, NodeChange

_PUBLIC: Final = {
    "dependencies": ("OnFailure",),
    "elements": ("ArrayCounts", "FailedElement"),
    "pattern": ("chain", "chord", "group", "map_over", "nested"),
    "status": ("FlowId", "FlowOutcome", "FlowStatus", "NodeStatus", "Wait"),
    "watched": ("FlowChange", "NodeChange"),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "ArrayCounts",
    "FailedElement",
    "FlowChange",
    "FlowId",
    "FlowOutcome",
    "FlowStatus",
    "NodeChange",
    "NodeStatus",
    "OnFailure",
    "Wait",
    "chain",
    "chord",
    "group",
    "map_over",
    "nested",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
