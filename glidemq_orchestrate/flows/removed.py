"""Nodes with removed jobs: which of them a retry can recreate, and which need a new submission.

Our functions keep the definition when they remove a node, so that the flow can rerun it. glide-mq's own
functions keep nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from glidemq_orchestrate.errors import NodeNotRepeatable
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState

_NAMED: Final = 3
_FIELDS: Final[tuple[JobField, ...]] = ("state", "gmo:removed", "gmo:gone")


class Removable(Protocol):
    """The properties of a node, of any path, that matter here."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> Sequence[str]: ...
    @property
    def state(self) -> str: ...
    @property
    def removed(self) -> bool: ...


def needed_names(nodes: Sequence[Removable], again: Collection[str]) -> set[str]:
    """The completed nodes with removed results that a rerun of ``again`` needs, directly or not.

    ``nodes``: all nodes of the flow, dependencies before dependents.
    """
    found, read = set[str](), set[str]()
    for node in reversed(nodes):
        is_gone = node.removed and node.state == JobState.COMPLETED
        if node.name in again or (is_gone and node.name in read):
            read.update(node.after)
            found.add(node.name)
    return found.difference(again)


def refuse_lost(flow_id: str, lost: Sequence[str]) -> None:
    """Refuse a retry that cannot recreate all nodes that it must run.

    Raises:
        NodeNotRepeatable: Some are ``lost``; nothing was changed.
    """
    if lost:
        names = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise NodeNotRepeatable(
            f"flow {flow_id} cannot be retried: another client has removed job {names} and its data. "
            'Fix: submit the specification again with on_existing="retry_failed"'
        )
