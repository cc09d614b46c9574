"""Nodes whose jobs were removed: which of them a retry makes again, and which only a specification can.

What our functions remove of a node leaves its definition, so that the flow can run it again. glide-mq's own
functions leave nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from glidemq_orchestrate.errors import NodeNotRepeatable
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.states import JobState

_NAMED: Final = 3
_FIELDS: Final[tuple[JobField, ...]] = ("state", "gmo:removed", "gmo:gone")


class Removable(Protocol):
    """A node of either path, as far as it counts here."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> Sequence[str]: ...
    @property
    def state(self) -> str: ...
    @property
    def removed(self) -> bool: ...


def needed_names(nodes: Sequence[Removable], again: Collection[str]) -> set[str]:
    """The completed nodes whose results were removed and that a run of ``again`` needs, directly or not.

    ``nodes``: all of the flow, dependencies before dependents.
    """
    found, read = set[str](), set[str]()
    for node in reversed(nodes):
        is_gone = node.removed and node.state == JobState.COMPLETED
        if node.name in again or (is_gone and node.name in read):
            read.update(node.after)
            found.add(node.name)
    return found.difference(again)


def refuse_lost(flow_id: str, lost: Sequence[str]) -> None:
    """Refuse a retry that cannot make every node again that it has to run.

    Raises:
        NodeNotRepeatable: That is so; nothing was changed.
    """
    if lost:
        some = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise NodeNotRepeatable(
            f"flow {flow_id} cannot be retried: another client has removed job {some}, and its data with it. "
            'Submit the specification again with on_existing="retry_failed"'
        )
