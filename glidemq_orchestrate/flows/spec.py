"""Flows as users write and read them: specification and status.

Independent of keys, servers and clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NewType, Unpack

from glidemq_orchestrate.errors import ConfigurationError, FailedNode, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.dependencies import Dependency, OnFailure, Rule
from glidemq_orchestrate.flows.forms.forms import FlowForms
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.foundation.durations import Duration, optional_duration
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.jobs.option_values import Fallback
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords, with_keywords
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.codec import Json, JsonLike

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.forms.file import OptionsFile

FlowId = NewType("FlowId", str)
SILENT: Final = timedelta(seconds=12)


@dataclass(frozen=True, slots=True, init=False)
class FlowNode:
    """One node of a flow; it becomes one job.

    Attributes:
        name: Unique in the flow, 1 to 256 characters, no control characters.
        queue: Where the job waits for a worker; that of the flow when left out.
        job: The handler's name; the name of the node when left out.
        data: What the handler gets as ``ctx.data``: JSON, at most 1 MiB encoded.
        after: Names of the nodes that must end first, or ``Dependency`` with what the failure of that node
            means to this one. The results of those that complete are ``ctx.inputs``.
        options: Attempts, backoff, timeout, delay, priority, time to live, ordering key. All but the
            attempts count from the moment the node may run. Options that remove jobs have no effect: a flow
            keeps its nodes. Each may also be given as a keyword, and then replaces that of ``options``:
            ``FlowNode("clean", attempts=3, timeout=60)``.
        rule: When this node runs, by how its dependencies end; see ``Rule``.
        on_failure: What the failure of this node means to dependents that do not set it themselves; see
            ``OnFailure``. Only with ``ignore`` it does not fail the flow.
        queue_timeout: The node fails when no worker has started it within this time after it could run. None:
            that of the flow.
    """

    name: str
    queue: str
    job: str
    data: JsonLike = None
    after: Sequence[str] = ()
    options: JobOptions = DEFAULT_OPTIONS
    rule: Rule | str = Rule.ALL_SUCCESS
    on_failure: OnFailure | str = OnFailure.FAIL
    queue_timeout: Duration | None = None

    def __init__(  # noqa: PLR0913  what a node has; most have defaults
        self,
        name: str,
        *,
        queue: str = "",
        job: str | None = None,
        data: JsonLike = None,
        after: Sequence[str] = (),
        options: JobOptions = DEFAULT_OPTIONS,
        rule: Rule | str = Rule.ALL_SUCCESS,
        on_failure: OnFailure | str = OnFailure.FAIL,
        queue_timeout: Duration | None = None,
        **keywords: Unpack[OptionKeywords],
    ) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "queue", queue)
        put(self, "job", name if job is None else job)
        put(self, "data", data)
        put(self, "after", after)
        put(self, "options", with_keywords(options, keywords))
        put(self, "rule", rule)
        put(self, "on_failure", on_failure)
        put(self, "queue_timeout", _span(queue_timeout))


@dataclass(frozen=True, slots=True)
class FlowSpec(FlowForms):
    """A DAG of jobs that ends as one. Nodes may be in any order; ``check_flow`` checks it.

    Attributes:
        name: The name of the flow in lists; not its id.
        nodes: 1 to 100,000 nodes.
        queue: Of the nodes that have none of their own.
        labels: Short strings to find the flow by, such as the DAG and run it came from: at most 32, keys and
            values of 1 to 256 characters. An orchestrator adds some of its own.
        retention: How long after its end the jobs and results of the flow are kept; None: for ever. Its
            outcome can be read longer, by its id.
        deadline: The flow fails when it has not ended within this time after its start. The time starts anew
            when a flow that has ended runs again, and with each generation.
        fail_fast: The first failure that is not ignored ends all other nodes; otherwise nodes that do not
            depend on it still run.
        priority: For the nodes that have none of their own; 0 to 2048.
        queue_timeout: For the nodes that have none of their own. None: they wait for a worker for ever.
    """

    name: str
    nodes: Sequence[FlowNode]
    queue: str = field(default="", kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict)
    retention: Duration | None = None
    deadline: Duration | None = None
    fail_fast: bool = False
    priority: int = 0
    queue_timeout: Duration | None = None

    def __post_init__(self) -> None:
        """Take seconds for what they are; all else is checked by ``check_flow``."""
        for name in ("retention", "deadline", "queue_timeout"):
            object.__setattr__(self, name, _span(getattr(self, name)))
        object.__setattr__(self, "nodes", _in_queue(self.nodes, self.queue))

    @classmethod
    @explained(InvalidFlow)
    def from_dict(cls, wire: Mapping[str, Any]) -> FlowSpec:
        """Build from the form of a flow file.

        That is ``{"name", "queue", "labels", "retention", "deadline", "fail_fast", "priority",
        "queue_timeout", "nodes": [{"name", "queue", "job", "data", "after", "options", "rule", "on_failure",
        "queue_timeout"}]}``. Durations are seconds, ISO 8601 (``PT5M``) or short (``5m``); ``options`` has
        the fields of ``JobOptions``; an element of ``after`` is a name or ``{"name", "on_failure"}``.

        Raises:
            InvalidFlow: A field is missing, unknown or of the wrong type; the message lists at most
                ten places.
        """
        with importing():
            from glidemq_orchestrate.flows.forms.file import read  # noqa: PLC0415  pydantic is slow to import

        file = read(wire)
        return cls(
            file.name,
            queue=file.queue,
            labels=file.labels,
            retention=file.retention,
            deadline=file.deadline,
            fail_fast=file.fail_fast,
            priority=file.priority,
            queue_timeout=file.queue_timeout,
            nodes=[
                FlowNode(
                    name=node.name,
                    queue=node.queue,
                    job=node.job if "job" in node.model_fields_set else None,
                    data=node.data,
                    after=[one if isinstance(one, str) else Dependency(**dict(one)) for one in node.after],
                    options=_options(node.options, f"nodes.{at}.options"),
                    rule=node.rule,
                    on_failure=node.on_failure,
                    queue_timeout=node.queue_timeout,
                )
                for at, node in enumerate(file.nodes)
            ],
        )


class FlowState(StrEnum):
    """The state of a flow."""

    STAGING = "staging"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """The stored state is none of these; the flow is marked ``broken``."""

    @property
    def is_terminal(self) -> bool:
        """Whether the flow has ended."""
        return self in (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """The record of a flow, read in one call whose cost does not grow with the flow.

    ``total`` nodes, of which ``completed``, ``failed`` and ``skipped`` have ended (``failed`` includes the
    nodes that could not run because a dependency failed, and the cancelled ones). ``reason`` is the first
    failure that is not ignored, or why it was cancelled. ``generation``: 0 for the first of the flow id;
    ``superseded_by``: the generation that took its place; ``idempotency_key``: that of the call that began
    it, as in ``submit``. ``runs``: how often this generation has begun again after it had ended (retried, or
    nodes run again); ``note``: the last text of ``Flow.note``, ''.
    ``broken``: parts of the stored record cannot be read; they are empty here, 0 or ``UNKNOWN``.
    """

    id: FlowId
    name: str
    state: FlowState
    home: str
    total: int
    completed: int
    failed: int
    reason: str
    labels: Mapping[str, str]
    created_at: datetime | None
    finished_at: datetime | None
    skipped: int = 0
    generation: int = 0
    broken: bool = False
    superseded_by: int | None = None
    idempotency_key: str = ""
    runs: int = 0
    note: str = ""
    stored_as: str = field(default="", repr=False)

    @property
    def open(self) -> int:
        """Nodes that have not ended."""
        return self.total - self.completed - self.failed - self.skipped


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of a flow as it was when it was read. ``attempts`` counts the attempts that were started.

    ``broken``: its place in the flow or its state cannot be read; such fields are empty or ``UNKNOWN``.
    ``run`` grows whenever the node starts over: retried, run again, or given another end by hand; 0 for the
    first. Its attempts are counted from there.
    ``worker``: the worker of this package that runs it, or ran it last, as ``Queue.workers`` lists it.
    ``renewed_at``: when that worker has last renewed its lease; None while it is not active.
    ``lost_attempts``: how many of its runs were lost with their worker since one ended; they cost no attempt.
    ``removed``: its job was removed. The state is how it had ended; its result is gone.
    """

    name: str
    queue: str
    job_id: str
    job: str
    after: tuple[str, ...]
    state: JobState
    attempts: int
    reason: str
    progress: Json
    started_at: datetime | None
    finished_at: datetime | None
    broken: bool = False
    run: int = 0
    worker: str | None = None
    renewed_at: datetime | None = None
    lost_attempts: int = 0
    removed: bool = False

    def silent_for(self, now: datetime) -> timedelta | None:
        """For how long its worker has given no sign of life, when that is too long; others run it soon.

        Workers of this package renew leases every second. None for others, and while it is not active.
        """
        if self.renewed_at is None or self.worker is None or now - self.renewed_at < SILENT:
            return None
        return now - self.renewed_at

    @property
    def seconds(self) -> float | None:
        """How long the last run took; None while it has not ended or never ran."""
        if self.started_at is None or self.finished_at is None or self.finished_at < self.started_at:
            return None
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """How a flow ended: its status, the result of each completed node, and the failed nodes, causes first.

    ``removed``: the completed nodes of a failed or cancelled flow whose jobs, and so results, were removed.
    """

    status: FlowStatus
    results: Mapping[str, Json]
    failed: Sequence[FailedNode]
    removed: Sequence[str] = ()

    @property
    def state(self) -> FlowState:
        """How the flow ended; that of ``status``."""
        return self.status.state


def _span(value: Duration | None) -> Duration | None:
    """A number of seconds as a ``timedelta``; what is no duration stays, for ``check_flow`` to refuse."""
    try:
        return optional_duration("", value)
    except ConfigurationError:
        return value


def _in_queue(nodes: Sequence[FlowNode], queue: str) -> Sequence[FlowNode]:
    """The nodes, in the queue of the flow where they have none; what are no nodes, ``check_flow`` refuses."""
    if not queue or not isinstance(nodes, Sequence):
        return nodes
    return [
        replace(node, queue=queue) if isinstance(node, FlowNode) and not node.queue else node
        for node in nodes
    ]


def _options(wire: OptionsFile, place: str) -> JobOptions:
    try:
        fallbacks = tuple(Fallback(**dict(fallback)) for fallback in wire.fallbacks)
        return JobOptions(**(dict(wire) | {"fallbacks": fallbacks}))
    except InvalidJob as exc:
        raise InvalidFlow(f"not a valid flow: {place}: {exc}") from exc
