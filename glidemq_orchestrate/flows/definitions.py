"""The definitions of stored nodes: data, options and policies, so that a flow can run or be compared again.

Our functions keep the definition when they remove a job, so that the flow can rerun the node. glide-mq's own
functions keep nothing: such a node is lost, and needs a new submission.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from glidemq_orchestrate.errors import NodeNotRepeatable
from glidemq_orchestrate.flows.checked import KEEPING, CheckedNode, canonical
from glidemq_orchestrate.flows.node_table import Row
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PAGE: Final = 50  # each with up to 1 MiB of data
SHARED: Final = 256
POLICIES: Final = ("gmo:rule", "gmo:on_failure", "gmo:queue_timeout", "gmo:edge", "gmo:array")


Policies = Mapping[str, str]
"""The policies of a node by the names of the job fields that would store them."""


class PolicyForm(Protocol):
    """How a flow stores the policies of its nodes, for a comparison with a specification."""

    def expected(self, node: CheckedNode) -> Policies:
        """The policies that a node of the specification should have."""

    def edges(self, expected: Policies) -> Sequence[str]:
        """The fields of the job for single dependencies, to be read with its definition."""

    def stored(self, name: str, definition: Definition) -> Policies:
        """The policies that a node has."""


class Definition(NamedTuple):
    """Data as JSON text with sorted keys, options, and the policies stored with the job."""

    data: str
    options: dict[str, Any]
    policies: Mapping[str, str]


def definition(queue: QueueKeys, job_id: str, edges: Sequence[str] = ()) -> Call[Definition | None]:
    """The definition of a node, with the fields of only these ``edges``; None if its job was removed."""
    fields = (*POLICIES, *edges)

    def decode(reply: Any) -> Definition | None:
        data, options, lost, *policies = reply
        if data is None or options is None or lost:
            return None
        present = {name: text for name, text in zip(fields, policies, strict=True) if text}
        return Definition(canonical(data), own_options(options), present)

    return command("HMGET", queue.job(job_id), "data", "opts", "gmo:gone", *fields, decode=decode)


def own_options(options: str) -> dict[str, Any]:
    """The options of a node without those that its flow sets, such as the trace context."""
    if options == "{}":
        return {}
    added = {"traceparent", "tracestate", "gmo", *KEEPING}
    return {name: value for name, value in json.loads(options).items() if name not in added}


class NodeSettings(NamedTuple):
    """How a node runs; many nodes share one. It has no policies of single dependencies.

    Attributes:
        rule, on_failure, edge: '' if the node has none.
        extension: The id of the extension that added it; '' for any other node.
        array: The definition of its elements, without the items; '' if it is no array.
    """

    options: str
    attempts: int
    delay_ms: int
    priority: int
    is_placed: bool
    rule: str
    on_failure: str
    edge: str
    queue_timeout_ms: int | None
    extension: str
    array: str = ""


NodeWork = tuple[str, NodeSettings]
"""The data of a node, and how it runs."""


def work_of(queue: QueueKeys, job_id: str) -> Call[NodeWork | None]:
    """The work in the job of a staged node; None if the job was removed."""
    return command("HMGET", queue.job(job_id), *WORK_FIELDS, decode=lambda reply: read_work(*reply))


WORK_FIELDS: Final = (
    "data",
    "opts",
    "gmo:gone",
    "maxAttempts",
    "priority",
    "gmo:placed",
    "gmo:grown",
    *POLICIES,
)


def read_work(
    data: str | None, options: str | None, lost: str | None, *fields: str | None
) -> NodeWork | None:
    return None if data is None or not options or lost else (data, _read_settings(options, *fields))


@lru_cache(maxsize=SHARED)
def _read_settings(  # noqa: PLR0913, PLR0917  a field each
    options: str,
    attempts: str | None,
    priority: str | None,
    placed: str | None,
    grown: str | None,
    rule: str | None,
    on_failure: str | None,
    timeout: str | None,
    edge: str | None,
    array: str | None,
) -> NodeSettings:
    present = own_options(options)
    return NodeSettings(
        "{}" if not present else json.dumps(present, separators=(",", ":"), ensure_ascii=False),
        max(number(attempts), 1),
        number(present.get("delay")) if present else 0,
        number(priority),
        placed == "1",
        rule or "",
        on_failure or "",
        edge or "",
        number(timeout) if timeout else None,
        added if (added := str(grown or "")).startswith("x-") else "",
        array or "",
    )


class StoredNodes(NamedTuple):
    """The stored nodes of a flow, as far as one read has returned them.

    Attributes:
        rows: The row of every node, dependencies before dependents.
        data: The data of nodes by name.
        settings: How the nodes run, by name.
        policies: The texts of policies that are stored apart from the jobs, by name.
    """

    rows: dict[str, Row]
    data: dict[str, str]
    settings: dict[str, NodeSettings]
    policies: Mapping[str, str] = MappingProxyType({})


class Ran(NamedTuple):
    """A node of a flow: its row, how it has run, and its definition.

    Attributes:
        row: Rank, queue, job id, job and dependencies.
        state: That of its job, or ``skipped``; ``removed-completed`` or the like if the job was removed.
        grown_by: The id of the job or extension that added it to the flow, or ''.
        definition: None if the job was removed; without the policies of single dependencies.
    """

    row: Row
    state: str
    grown_by: str
    definition: Definition | None


_NAMED: Final = 3


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
