"""The model of a flow file, its JSON Schema, and graphs in the form of flow files.

Imported on use, since pydantic is slow to import. Graphs are read through their methods, so networkx is
imported only to create one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import TimedeltaSchema

from glidemq_orchestrate.errors import ConfigurationError, DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows.dependencies import Dependency, OnFailure, Rule, topological_order
from glidemq_orchestrate.flows.forms.drawing import NamedNode, dependencies
from glidemq_orchestrate.flows.forms.reader import summary
from glidemq_orchestrate.foundation.durations import from_text
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.jobs.option_values import Backoff, Keep, Ordering

if TYPE_CHECKING:
    import networkx as nx

_NAME: Final[dict[str, Any]] = {"minLength": 1, "maxLength": 256}
_DURATION: Final = TypeAdapter(timedelta)


def _read_short(value: Any) -> Any:
    """The duration of a text such as ``5m``; anything else unchanged, for the model to check."""
    found = from_text(value) if isinstance(value, str) else None
    return value if found is None else found


def _read_field(field: str, value: Any) -> Any:
    """An object with ``_read_short`` applied to a field of it or of a nested object."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: _read_short(part) if key == field else _read_field(field, part) for key, part in value.items()
    }


def _with(field: str) -> BeforeValidator:
    return BeforeValidator(partial(_read_field, field))


FileDuration = Annotated[timedelta, BeforeValidator(_read_short)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)


class FallbackFile(_Strict, frozen=True):
    """The replacements that a later attempt uses."""

    model: str
    provider: str | None = None
    metadata: dict[str, Any] | None = None


class OptionsFile(
    _Strict, frozen=True
):  # frozen means hashable, so pydantic does not copy the default for each node
    """How a node is run: the fields of ``JobOptions``."""

    attempts: int = Field(1, json_schema_extra={"minimum": 1})
    """The max number of runs of the job."""
    backoff: Annotated[Backoff | None, _with("delay")] = None
    """Pause between attempts; without it a retry is immediate."""
    timeout: FileDuration | None = None
    """Max duration of one run."""
    delay: FileDuration = timedelta(0)
    """Delay of the first run, from the end of the last dependency."""
    priority: int = Field(0, json_schema_extra={"minimum": 0, "maximum": 2048})
    """1 runs first; 0, the default, runs after every job with a priority."""
    lifo: bool = False
    """Whether it runs before jobs added earlier."""
    ttl: FileDuration | None = None
    """Time after which it will not be started."""
    ordering: Annotated[Ordering | None, _with("per")] = None
    """A key whose jobs run in order, and its limits."""
    cost: float | None = None
    """Tokens that each start takes from the token bucket of the ordering key."""
    lease: FileDuration | None = None
    """How long a worker may go without a heartbeat before another takes the job over."""
    remove_on_complete: Annotated[bool | int | Keep, _with("age")] = False
    """Whether and when the completed job is removed."""
    remove_on_fail: Annotated[bool | int | Keep, _with("age")] = False
    """Whether and when the failed job is removed."""
    fallbacks: tuple[FallbackFile, ...] = ()
    """The replacements that attempts after the first use."""
    must_pass: bool = False
    """The job is a check: it fails if its handler returns false or {"passed": false}."""
    tags: tuple[str, ...] = Field((), json_schema_extra={"maxItems": 32})
    """Words by which the job is found."""
    history: bool = False
    """Record what happens to the job, with its time."""
    traceparent: str | None = None
    """The W3C trace context to which the span of each run is linked."""


class DependencyFile(_Strict):
    """A node to wait for, and how its failure counts."""

    name: str
    on_failure: OnFailure | None = None


class RangeFile(_Strict):
    """The whole numbers from start to before stop."""

    start: int = 0
    stop: int
    step: int = 1


class NodeFile(_Strict):
    """A node, which becomes one job; with over, an array of elements."""

    name: str = Field(json_schema_extra=_NAME)
    """Unique in the flow; no control characters."""
    queue: str = Field(default_factory=str, json_schema_extra={"minLength": 1})
    """The queue of the job; by default that of the flow."""
    job: str = Field(default_factory=str, json_schema_extra={"minLength": 1})
    """The handler's name; by default the name of the node."""
    data: Any = None
    """The handler's ctx.data: at most 1 MiB of JSON."""
    after: list[str | DependencyFile] = []
    """The nodes that must end first; the results of the completed ones are ctx.inputs."""
    options: OptionsFile = OptionsFile()
    """Attempts, backoff, timeout, delay and more."""
    rule: Rule = Rule.ALL_SUCCESS
    """The trigger rule: when it runs, depending on how its dependencies end."""
    on_failure: OnFailure = OnFailure.FAIL
    """How its failure counts for its dependents."""
    queue_timeout: FileDuration | None = None
    """It fails if no worker starts it within this time after it becomes ready."""
    over: list[Any] | RangeFile | None = None
    """Makes it an array: the handler runs for each item of the list or number of the range."""
    max_running: int | None = Field(None, json_schema_extra={"minimum": 1})
    """Of an array: how many elements run at once at most."""
    max_failed: int | str | None = None
    """Of an array: how many elements may fail, as a number or a share such as 1%."""
    as_jobs: bool = False
    """Of an array: each element is a job of its own, which workers in Node can run, too."""


class FlowFile(_Strict):
    """A flow of jobs for glidemq-orchestrate."""

    editor: str | None = Field(None, alias="$schema")
    """The location of this schema, for editors; otherwise ignored."""
    name: str = Field(json_schema_extra={"minLength": 1})
    """The name of the flow in lists, not its id."""
    queue: str = Field(default_factory=str, json_schema_extra={"minLength": 1})
    """The default queue of the nodes."""
    nodes: list[NodeFile] = Field(json_schema_extra={"minItems": 1})
    """In any order, without cycles."""
    labels: dict[str, str] = Field({}, json_schema_extra={"maxProperties": 32})
    """Short strings by which flows can be found."""
    retention: FileDuration | None = None
    """How long the jobs and results are kept after its end; by default without limit."""
    deadline: FileDuration | None = None
    """The flow fails if it does not end within this time after its start."""
    fail_fast: bool = False
    """The first failure ends all other nodes."""
    priority: int = Field(0, json_schema_extra={"minimum": 0, "maximum": 2048})
    """The default for the nodes."""
    queue_timeout: FileDuration | None = None
    """The default for the nodes."""


def validated(wire: Mapping[str, Any], text: str = "") -> FlowFile:
    """Check the fields and types of a flow file.

    Args:
        wire: The flow.
        text: The file that it comes from; errors then name the line.

    Raises:
        InvalidFlow: A field is missing, unknown or of the wrong type; the message lists at most ten places.
    """
    # Pydantic locks what it makes at its first use: a child that is forked then would wait for it for ever.
    with importing():
        try:
            return FlowFile.model_validate(dict(wire))
        except ValidationError as exc:
            raise InvalidFlow(f"not a valid flow: {summary(exc, wire, _names(), text)}") from exc


def _names() -> dict[str, list[str]]:
    """The fields of each object of a flow file."""
    models: dict[str, type[BaseModel]] = {"flow": FlowFile, "nodes": NodeFile, "options": OptionsFile}
    plain: dict[str, Any] = {"backoff": Backoff, "ordering": Ordering}
    return {
        name: [part.alias or field for field, part in model.model_fields.items()]
        for name, model in models.items()
    } | {name: [part.name for part in fields(kind)] for name, kind in plain.items()}


def as_file(value: Any) -> Any:
    """A value in the form of a flow file: without fields at their defaults, durations as ISO 8601."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_file(part) for name, part in without_defaults(value)}
    if isinstance(value, Dependency) and value.on_failure is not None:
        return {"name": value.name, "on_failure": value.on_failure.value}
    if isinstance(value, range):
        value = {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, timedelta):
        with importing():  # as in validated
            return _DURATION.dump_python(value, mode="json")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: as_file(part) for key, part in value.items()}
    return [as_file(part) for part in value] if isinstance(value, list | tuple) else value


def without_defaults(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that differ from their defaults."""
    for part in fields(value):
        content = getattr(value, part.name)
        default = part.default_factory() if part.default_factory is not MISSING else part.default
        if isinstance(content, timedelta) and isinstance(default, int | float):
            default = timedelta(seconds=default)
        if content != default and not (default == () and not content):
            yield part.name, content


class _Schema(GenerateJsonSchema):
    def timedelta_schema(self, schema: TimedeltaSchema) -> JsonSchemaValue:  # noqa: ARG002  the base class's signature
        about = "Seconds, ISO 8601 such as PT5M, or short such as 5m."
        return {"anyOf": [{"type": "number"}, {"type": "string"}], "description": about}

    def get_title_from_name(self, name: str) -> str:  # noqa: ARG002  the base class's signature
        return ""


def make_schema() -> dict[str, Any]:
    """The JSON Schema of a flow file, from the models above."""
    schema = FlowFile.model_json_schema(schema_generator=_Schema)
    head = {"$schema": _Schema.schema_dialect, "title": "glidemq flow"}
    return head | {key: value for key, value in _untitled(schema).items() if key != "title"}


def _untitled(value: Any) -> Any:
    if isinstance(value, dict):
        return _once({key: _untitled(part) for key, part in value.items() if key != "title" or part})
    return [_untitled(part) for part in value] if isinstance(value, list) else value


def _once(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without redundant alternatives, since a duration may be a number."""
    ways = schema.get("anyOf", [])
    within = [part for way in ways if isinstance(way, dict) for part in way.get("anyOf", [])]
    left = [way for way in ways if way not in within]
    if len(left) == len(ways):
        return schema
    rest = {key: part for key, part in schema.items() if key != "anyOf"}
    return left[0] | rest if len(left) == 1 else {"anyOf": left} | rest


def schema_text() -> str:
    """The JSON Schema that is published with the package."""
    return (resources.files("glidemq_orchestrate") / "flow.schema.json").read_text(encoding="utf-8")


def write_schema() -> str:
    """The JSON Schema to publish."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"


def read_graph(graph: Any, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ``nodes`` of a flow file from a graph.

    Args:
        graph: An object with ``is_directed()``, ``nodes(data=True)`` and ``edges(data=True)``, like networkx
            graphs.
        defaults: Default attributes of the nodes.

    Raises:
        InvalidFlow: It is not a directed graph, or a node has no queue or job; DuplicateNode if two have the
            same name; CycleError.
    """
    try:
        is_directed, nodes, edges = graph.is_directed(), graph.nodes(data=True), graph.edges(data=True)
    except AttributeError as exc:
        raise InvalidFlow(f"{type(graph).__name__} is not a graph: a networkx.DiGraph is needed") from exc
    if not is_directed:
        raise InvalidFlow("the graph is undirected; a flow needs edges from dependency to dependent")
    found = {node: _attributes(node, attributes, defaults) for node, attributes in nodes}
    names = [wire["name"] for wire in found.values()]
    if len(set(names)) < len(names):
        raise DuplicateNode(sorted({name for name in names if names.count(name) > 1}))
    after: dict[Any, dict[str, Any]] = {node: {} for node in found}
    for dependency, dependent, attributes in edges:
        policy = {key: as_file(value) for key, value in attributes.items() if key == "on_failure"}
        name = found[dependency]["name"]
        after[dependent][name] = {"name": name, **policy} if policy else name
    topological_order({wire["name"]: list(after[node]) for node, wire in found.items()})
    return [wire | {"after": list(after[node].values())} for node, wire in found.items()]


def _attributes(node: object, attributes: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A node of a graph, in the form of a flow file."""
    known = {key: value for key, value in attributes.items() if key in NodeFile.model_fields}
    wire = {**defaults, **known, "name": str(node)}
    wire = {key: value if key == "data" else as_file(value) for key, value in wire.items()}
    for needed in ("queue", "job"):
        if not isinstance(wire.get(needed), str):
            raise InvalidFlow(
                f"node {node} of the graph has no {needed}. Fix: set its attribute {needed} to a string, "
                f"or pass {needed}= for all nodes"
            )
    return wire


def write_graph(nodes: Sequence[NamedNode], about: Mapping[str, Any]) -> nx.DiGraph[str]:
    """A graph with the fields of the nodes as attributes."""
    try:
        with importing():
            import networkx as nx

            graph: nx.DiGraph[str] = nx.DiGraph(**about)  # at its first use networkx compiles under a lock
    except ImportError as exc:
        raise ConfigurationError("graphs need networkx: pip install 'glidemq-orchestrate[graph]'") from exc
    for node in nodes:
        attributes = {key: value for key, value in without_defaults(node) if key not in ("name", "after")}
        graph.add_node(node.name, **attributes)
    for node in nodes:
        policies = {str(one): one.on_failure for one in node.after if isinstance(one, Dependency)}
        for name in dependencies(node):
            policy = policies.get(name)
            graph.add_edge(name, node.name, **({} if policy is None else {"on_failure": policy}))
    return graph
