"""The specification of a flow: its nodes, and its conversion from and to files, graphs and drawings. Pure.

Modules that are slow to import are imported on use.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.dependencies import Dependency, OnFailure, Rule
from glidemq_orchestrate.flows.forms.drawing import FOLD_FROM, dot, in_order, mermaid
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.foundation.durations import Duration, optional_duration
from glidemq_orchestrate.foundation.functions import named_function
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.jobs.option_values import Fallback
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords, with_keywords
from glidemq_orchestrate.wire.codec import JsonLike

if TYPE_CHECKING:
    import networkx as nx

    from glidemq_orchestrate.flows.forms.file import FlowFile, NodeFile, OptionsFile


@dataclass(frozen=True, slots=True, init=False)
class FlowNode:
    """A node of a flow; it becomes one job.

    Attributes:
        name: Unique in the flow, 1 to 256 characters, no control characters.
        queue: The queue of the job; by default that of the flow.
        job: The name of the handler; by default the name of the node.
        data: JSON, at most 1 MiB encoded; ``ctx.data`` of the handler.
        after: The names of the nodes that must end first, or a ``Dependency`` that also sets how the failure
            of that node counts. The results of the completed ones are ``ctx.inputs``.
        options: Attempts, backoff, timeout, delay, priority, time to live, ordering key. All times count from
            the moment when the node may run. Options that remove jobs have no effect, since a flow keeps its
            nodes. A keyword overrides a field of ``options``: ``FlowNode("clean", attempts=3, timeout=60)``.
        rule: When the node runs, depending on how its dependencies end; see ``Rule``.
        on_failure: How its failure counts for dependents without a policy of their own; see ``OnFailure``. It
            fails the flow, except with ``ignore``.
        queue_timeout: The node fails if no worker starts it within this time after it may run. None: that of
            the flow.
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

    def __init__(  # noqa: PLR0913  the fields; most have defaults
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
        _set_name(self, name)
        _set_queue(self, queue)
        _set_job(self, name if job is None else job)
        _set_data(self, data)
        _set_after(self, tuple(after) if hasattr(after, "__next__") else after)  # read more than once
        _set_options(self, with_keywords(options, keywords, type(self).__slots__) if keywords else options)
        _set_rule(self, rule)
        _set_on_failure(self, on_failure)
        _set_queue_timeout(self, None if queue_timeout is None else _span(queue_timeout))


# For a frozen class, half the time of ``object.__setattr__``; a flow has thousands of nodes.
_set_name, _set_queue, _set_job, _set_data, _set_after, _set_options, _set_rule, *_others = (
    vars(FlowNode)[part.name].__set__ for part in fields(FlowNode)
)
_set_on_failure, _set_queue_timeout = _others


@dataclass(frozen=True, slots=True, init=False)
class ArrayNode(FlowNode):
    """A node over a range or a list: one node of the flow, however many elements it has.

    Workers run the elements in slices, without a job for each (but see ``as_jobs``). The node completes when
    all have ended; its result is ``{"elements": n, "completed": n, "failed": n, "skipped": n}``, and
    ``flow.array(name)`` reads the results of the elements.

    The handler runs for each element: ``ctx.index`` is its position, and ``ctx.data`` its item, or with
    ``data`` (an object) that object with the item added as ``item``.

    Attributes:
        over: A ``range``, or a sequence of JSON values; 1 to 100,000,000 elements, each value at most 1 MiB
            encoded. A range is submitted as one small call.
        max_running: How many elements run at once at most, on all workers; None: as many as workers run.
        max_failed: How many elements may fail, as a number or as a share such as ``"1%"`` (rounded down).
            With more, the node fails immediately and no further element starts. None: every element runs,
            and any failure fails the node.
        as_jobs: Whether each element is a job of its own while it waits and runs: at most 200 at once. Then
            also workers in Node run elements, and an element can wait for child jobs and signals. It takes
            as long as a node does. It is so anyway if ``options`` have something that only jobs have: LIFO,
            a time to live, an ordering key, a cost, fallbacks.
        options: As for ``FlowNode``, for each element; ``delay`` and ``priority`` are those of the node. In
            the ordering key, ``{item}`` stands for the item, and ``{item.customer}`` for a field of it.
    """

    over: Sequence[JsonLike] = field(default=(), repr=False)
    max_running: int | None = None
    max_failed: int | str | None = None
    as_jobs: bool = False

    def __init__(
        self,
        name: str,
        *,
        over: Sequence[JsonLike],
        max_running: int | None = None,
        max_failed: int | str | None = None,
        as_jobs: bool = False,
        **fields: Any,
    ) -> None:
        super(ArrayNode, self).__init__(name, **fields)
        put = object.__setattr__
        put(self, "over", over)
        put(self, "max_running", max_running)
        put(self, "max_failed", max_failed)
        put(self, "as_jobs", as_jobs)


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """A DAG of jobs with a common end. Nodes may be in any order; ``check_flow`` checks it.

    Attributes:
        name: The name of the flow in lists, not its id.
        nodes: 1 to 100,000 nodes.
        queue: The default queue of the nodes.
        labels: Short strings by which the flow can be found, such as its DAG and run: at most 32; keys and
            values of 1 to 256 characters. Orchestrators add their own.
        retention: How long jobs and results are kept after the end; None: without limit. The outcome can be
            read longer, by the id of the flow.
        deadline: The flow fails if it does not end within this time after its start. The time restarts with
            each generation, and when a flow that has ended runs again.
        fail_fast: Whether the first failure that is not ignored ends all other nodes. Otherwise, nodes that
            do not depend on the failed one still run.
        priority: The default priority of the nodes, 0 to 2048.
        queue_timeout: The default queue timeout of the nodes. None: they wait for a worker without limit.
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
        """Convert seconds to durations; ``check_flow`` checks everything else."""
        for name in ("retention", "deadline", "queue_timeout"):
            object.__setattr__(self, name, _span(getattr(self, name)))
        object.__setattr__(self, "nodes", _in_queue(self.nodes, self.queue))

    def __repr__(self) -> str:
        """The name and the number of nodes: orchestrators log a specification in one line."""
        return f"<FlowSpec {self.name!r:.80}: {len(self.nodes)} nodes>"

    @classmethod
    @explained(InvalidFlow)
    def from_dict(cls, wire: Mapping[str, Any]) -> FlowSpec:
        """Build from the form of a flow file.

        The form is ``{"name", "queue", "labels", "retention", "deadline", "fail_fast", "priority",
        "queue_timeout", "nodes": [{"name", "queue", "job", "data", "after", "options", "rule", "on_failure",
        "queue_timeout"}]}``. Durations are seconds, ISO 8601 (``PT5M``) or short (``5m``); ``options`` has
        the fields of ``JobOptions``; an element of ``after`` is a name or ``{"name", "on_failure"}``.

        Raises:
            InvalidFlow: A field is missing, unknown or of the wrong type; the message lists at most
                ten places.
        """
        with importing():
            from glidemq_orchestrate.flows.forms.file import validated  # noqa: PLC0415  pydantic is slow to import

        return cls._from(validated(wire))

    @classmethod
    def _from(cls, file: FlowFile) -> FlowSpec:
        return cls(
            file.name,
            queue=file.queue,
            labels=file.labels,
            retention=file.retention,
            deadline=file.deadline,
            fail_fast=file.fail_fast,
            priority=file.priority,
            queue_timeout=file.queue_timeout,
            nodes=[_node(node) for node in file.nodes],
        )

    @classmethod
    def from_file(cls, path: str | Path) -> FlowSpec:
        """Read a flow file, YAML or JSON; ``glidemq flow schema`` prints its JSON Schema.

        JSON may have up to 256 MiB, YAML up to 16 MiB, 2,000,000 values and 100 levels. Aliases and merges
        are expanded, up to a limit. Reading takes memory of up to about 25 times the size of the file.

        Raises:
            ConfigurationError: The file cannot be read.
            InvalidFlow: It is not YAML or JSON, an object has a duplicate key, or it is not a flow; the
                message names the file, the line, the node and the field.
        """
        with importing():
            from glidemq_orchestrate.flows.forms.file import validated  # noqa: PLC0415  pydantic is slow to import
            from glidemq_orchestrate.flows.forms.reader import object_in, read_text  # noqa: PLC0415  only for files

        text = read_text(path)
        wire = object_in(path, text)
        try:
            return cls._from(validated(wire, text))
        except InvalidFlow as exc:
            exc.args = (f"{path}: {exc}",)
            raise

    @classmethod
    def from_function(cls, function: str, /, **arguments: Any) -> FlowSpec:
        """Call ``package.module:function``, which returns a flow or its dict.

        Args:
            function: Its import path. The module is imported, which runs its code.
            arguments: Passed to it by name. Its own exceptions are not caught.

        Raises:
            ConfigurationError: There is no such function.
            InvalidFlow: It does not accept these arguments, or does not return a flow.
        """
        found = named_function(function, "flow").function
        refused = f"flow {function} cannot be called with these arguments"
        try:
            inspect.signature(found).bind(**arguments)
        except TypeError as exc:
            raise InvalidFlow(f"{refused}: {exc}") from exc
        except ValueError as exc:  # each version of Python words it otherwise
            raise InvalidFlow(f"{refused}: no signature found") from exc
        made = found(**arguments)
        if isinstance(made, cls):
            return made
        if isinstance(made, Mapping):
            return cls.from_dict(made)
        raise InvalidFlow(f"flow {function} must return a FlowSpec or a dict, not {type(made).__name__}")

    @classmethod
    def from_graph(
        cls,
        graph: Any,
        *,
        name: str,
        queue: str | None = None,
        job: str | None = None,
        **about: Any,
    ) -> FlowSpec:
        """Build from a networkx ``DiGraph``, or any object with its methods.

        An edge leads from a dependency to its dependent. The attributes of a node are the fields of
        ``FlowNode``; ``options`` may be a dict, as in a flow file. Other attributes are ignored.

        Args:
            graph: Its nodes may be any objects; ``str()`` of each is its name.
            name: The name of the flow.
            queue: For nodes without the attribute ``queue``.
            job: For nodes without the attribute ``job``.
            about: Further fields of ``FlowSpec``, such as ``labels`` and ``retention``.

        Raises:
            InvalidFlow: It is not a directed graph, or a node is not valid; the message names it. Subclasses:
                DuplicateNode and CycleError (``exc.cycle`` lists the nodes).
        """
        with importing():
            from glidemq_orchestrate.flows.forms.file import read_graph  # noqa: PLC0415  imports pydantic

        defaults = {"queue": queue, "job": job}
        nodes = read_graph(graph, {key: value for key, value in defaults.items() if value is not None})
        return cls.from_dict({"name": name, "nodes": nodes} | about)

    def to_dict(self) -> dict[str, Any]:
        """Return the form of a flow file; ``from_dict`` of it is an equal flow. Durations are ISO 8601."""
        with importing():
            from glidemq_orchestrate.flows.forms.file import as_file  # noqa: PLC0415  imports pydantic

        wire: dict[str, Any] = as_file(self)
        return wire

    def to_graph(self) -> nx.DiGraph[str]:
        """Return a networkx ``DiGraph``; ``from_graph`` of it is an equal flow.

        Nodes have the fields that differ from their defaults as attributes; name, labels and the other
        fields of the specification are in ``.graph``.

        Raises:
            ConfigurationError: networkx is not installed; it comes with the extra ``graph``.
        """
        with importing():
            from glidemq_orchestrate.flows.forms.file import write_graph  # noqa: PLC0415  imports pydantic

        about = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "nodes"}
        return write_graph(self.nodes, about)

    def to_mermaid(self, *, fold: int | None = FOLD_FROM) -> str:
        """Draw as a Mermaid flowchart.

        Args:
            fold: Fan-outs of at least this many nodes are drawn as one: nodes whose names differ only by
                numbers and that wait for the same nodes. None folds nothing.

        Raises:
            CycleError, DuplicateNode, UnknownDependency: It cannot be drawn.
        """
        return mermaid(in_order(self.nodes), at_least=fold)

    def to_dot(self, *, fold: int | None = FOLD_FROM) -> str:
        """Draw in the DOT language of Graphviz. For ``fold`` and errors see ``to_mermaid``."""
        return dot(self.name, in_order(self.nodes), at_least=fold)


def _span(value: Duration | None) -> Duration | None:
    """A number of seconds as a ``timedelta``. Other values are unchanged; ``check_flow`` refuses them."""
    try:
        return optional_duration("", value)
    except ConfigurationError:
        return value


def _in_queue(nodes: Sequence[FlowNode], queue: str) -> Sequence[FlowNode]:
    """The nodes, with the default queue. Other values are unchanged; ``check_flow`` refuses them."""
    if not queue or not isinstance(nodes, Sequence):
        return nodes
    return [
        replace(node, queue=queue) if isinstance(node, FlowNode) and not node.queue else node
        for node in nodes
    ]


def _node(file: NodeFile) -> FlowNode:
    """A node of a flow file; an array if it has ``over`` or a limit of arrays."""
    about: dict[str, Any] = {
        "name": file.name,
        "queue": file.queue,
        "job": file.job if "job" in file.model_fields_set else None,
        "data": file.data,
        "after": [one if isinstance(one, str) else Dependency(**dict(one)) for one in file.after],
        "options": _options(file.options, f"node {file.name}: options"),
        "rule": file.rule,
        "on_failure": file.on_failure,
        "queue_timeout": file.queue_timeout,
    }
    limits: dict[str, Any] = {name: getattr(file, name) for name in ("max_running", "max_failed", "as_jobs")}
    if file.over is None and limits == {"max_running": None, "max_failed": None, "as_jobs": False}:
        return FlowNode(**about)
    if file.over is None:
        raise InvalidFlow(
            f"not a valid flow: node {file.name}: {', '.join(limits)} are of arrays. Fix: add over"
        )
    try:
        over = file.over if isinstance(file.over, list) else range(*(value for _, value in file.over))
    except ValueError as exc:
        raise InvalidFlow(f"not a valid flow: node {file.name}: over: {exc}") from None
    return ArrayNode(over=over, **limits, **about)


def _options(wire: OptionsFile, place: str) -> JobOptions:
    try:
        fallbacks = tuple(Fallback(**dict(fallback)) for fallback in wire.fallbacks)
        return JobOptions(**(dict(wire) | {"fallbacks": fallbacks}))
    except InvalidJob as exc:
        raise InvalidFlow(f"not a valid flow: {place}: {exc}") from exc
