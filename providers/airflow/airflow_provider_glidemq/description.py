"""The flows and jobs of operators: read from files, and checked as far as possible before rendering."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow_provider_glidemq.task_attempt import USER_LABELS
from airflow_provider_glidemq.templates import FREE, MARKS, TemplateNames, is_template, is_unknown
from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, JobOptions, Rule
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow
from glidemq_orchestrate.flows import OnFailure
from glidemq_orchestrate.foundation.functions import check_named
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.values import MAX_NAME

FLOW_FILES: Final = (".yaml", ".yml", ".json")
CHECKED_NODES: Final = 5_000
_REQUIRED: Final = frozenset({"name", "queue", "job", "key", "model"})


class FlowText(str):
    """The text of a flow file that must be rendered before it is parsed; ``path`` is its location."""

    __slots__ = ("path",)

    path: str

    @classmethod
    def of(cls, text: str, path: str) -> FlowText:
        """Make a text with its path."""
        made = cls(text)
        made.path = path
        return made


def is_file(flow: object) -> bool:
    """Whether the value is the name of a flow file."""
    return isinstance(flow, str) and not isinstance(flow, FlowText) and flow.endswith(FLOW_FILES)


def find_file(name: str, folders: Iterable[str | Path]) -> Path:
    """Find a flow file in the first of the folders that has it.

    Raises:
        ConfigurationError: No folder has it.
    """
    places = [Path(folder) / name for folder in folders]
    for place in places:
        if place.is_file():
            return place
    where = ", ".join(str(place.parent) for place in places)
    raise ConfigurationError(f"flow file {name} was not found in {where}")


def read_file(place: Path, marks: Collection[str] = MARKS) -> dict[str, Any] | FlowText:
    """The object in a flow file, or its text if the file has templates and cannot be parsed before rendering.

    Raises:
        ConfigurationError, InvalidFlow: See ``FlowSpec.from_file``.
    """
    with importing():
        from glidemq_orchestrate.flows.forms.reader import object_in, read_text  # noqa: PLC0415  only for files

    text = read_text(place)
    try:
        return object_in(place, text)
    except InvalidFlow:
        if is_template(text, marks):
            return FlowText.of(text, str(place))
        raise


def object_of(text: FlowText) -> dict[str, Any]:
    """The object in a rendered text.

    Raises:
        InvalidFlow: The text contains no object.
    """
    with importing():
        from glidemq_orchestrate.flows.forms.reader import object_in  # noqa: PLC0415  only for files

    return object_in(text.path, str(text))


def check_description(flow: object, marks: Collection[str] = MARKS) -> None:
    """Refuse a description that cannot become a flow for any values of its templates. Opens no file.

    A flow of more than 5,000 nodes is only checked by ``submit``: DAG files are parsed often.

    Raises:
        InvalidFlow, ConfigurationError, EncodeError, PayloadTooLarge: The errors of ``submit``.
        TypeError: No value of this type describes a flow.
    """
    if isinstance(flow, FlowText) or is_unknown(flow, marks):
        return
    if isinstance(flow, str):
        if not is_file(flow):
            _check_function(flow)
    elif isinstance(flow, FlowSpec):
        _check_spec(flow, marks)
    elif isinstance(flow, Mapping):
        _check_wire(flow, marks)
    else:
        raise TypeError(f"flow must be a dict, a FlowSpec or a string, got {type(flow).__name__}")


def names_of(flow: object, marks: Collection[str] = MARKS) -> list[str] | None:
    """The names of the nodes of a checked description; None if they are not known before rendering."""
    nodes: Any = flow.nodes if isinstance(flow, FlowSpec) else None
    if isinstance(flow, Mapping):
        nodes = flow.get("nodes")
    if isinstance(nodes, str) or not isinstance(nodes, Sequence):
        return None
    names: list[Any] = [
        node.get("name") if isinstance(node, Mapping) else getattr(node, "name", None) for node in nodes
    ]
    return names if all(isinstance(name, str) and not is_unknown(name, marks) for name in names) else None


def check_job(
    parts: Mapping[str, Any], options: object, retention: object, marks: Collection[str] = MARKS
) -> None:
    """Refuse a job that cannot run for any values of its templates.

    Raises:
        InvalidFlow, InvalidJob, ConfigurationError, EncodeError, PayloadTooLarge: The errors of ``submit``.
        TypeError: The options are neither ``JobOptions`` nor a dict.
    """
    names = TemplateNames()
    known = {name: names.of(part) if is_unknown(part, marks) else part for name, part in parts.items()}
    known["data"] = _known(known["data"], "data", names, marks)
    if is_unknown(options, marks):
        options = None
    elif isinstance(options, Mapping):
        options = _known(options, "options", names, marks)
    _check_flow(job_spec(known, options, retention))


def job_spec(parts: Mapping[str, Any], options: object, retention: object) -> FlowSpec:
    """A job as a flow with one node.

    Args:
        parts: The queue, job and data, and the name of the node; by default the name of the job.
        options: ``JobOptions``, a dict of them, or None.
        retention: A duration, a number of seconds, or None.

    Raises:
        InvalidFlow, InvalidJob: A dict of options is invalid.
        TypeError: The options are neither ``JobOptions`` nor a dict, or the retention is not a duration.
    """
    if isinstance(retention, int | float) and not isinstance(retention, bool):
        retention = timedelta(seconds=retention)
    if not isinstance(retention, timedelta | None):
        raise TypeError(f"retention must be a duration or seconds, got {retention!r}")
    queue, job = (str(parts[name]) if type(parts[name]) is int else parts[name] for name in ("queue", "job"))
    node = FlowNode(parts.get("name", str(job)[:MAX_NAME]), queue=queue, job=job, data=parts["data"])
    if isinstance(options, Mapping):
        wire = {"name": node.name, "queue": "q", "job": "j", "options": options}
        options = FlowSpec.from_dict({"name": "job", "nodes": [wire]}).nodes[0].options
    if options is not None and not isinstance(options, JobOptions):
        raise TypeError(f"options must be JobOptions or a dict, got {type(options).__name__}")
    return FlowSpec(
        node.name, [node if options is None else replace(node, options=options)], retention=retention
    )


def _check_function(flow: str) -> None:
    if ":" not in flow:
        raise InvalidFlow(
            f"flow {flow!r} is neither a flow file ({', '.join(FLOW_FILES)}) nor package.module:function"
        )
    check_named(flow, "flow")


def _check_spec(spec: FlowSpec, marks: Collection[str]) -> None:
    if isinstance(spec.nodes, Sequence) and len(spec.nodes) > CHECKED_NODES:
        return
    if isinstance(spec.nodes, Sequence) and all(isinstance(node, FlowNode) for node in spec.nodes):
        spec = _without_templates(spec, TemplateNames(), marks)
    _check_flow(spec)


def check_labels(spec: FlowSpec) -> None:
    """Refuse more labels than fit beside the labels of the operator.

    Raises:
        InvalidFlow: The flow has more than 24 labels.
    """
    if isinstance(spec.labels, Mapping) and len(spec.labels) > USER_LABELS:
        raise InvalidFlow(
            f"flow {spec.name} has {len(spec.labels)} labels; the limit is {USER_LABELS}, as the operator "
            "adds its own: orchestrator, dag_id, task_id, run_id, map_index, try. "
            f"Fix: leave {len(spec.labels) - USER_LABELS} of them out"
        )


def _check_flow(spec: FlowSpec) -> None:
    check_labels(spec)
    with importing():
        from glidemq_orchestrate import check_flow  # noqa: PLC0415  most DAG files need it not

    check_flow(spec)


def _without_templates(spec: FlowSpec, names: TemplateNames, marks: Collection[str]) -> FlowSpec:
    """The specification with stand-ins for names that are templates; the same object if there are none."""

    def plain(text: Any) -> Any:
        return names.of(text) if is_unknown(text, marks) else text

    nodes = [_node_without_templates(node, plain, marks) for node in spec.nodes]
    labels = spec.labels
    if isinstance(labels, Mapping):
        labels = {key: plain(text) for key, text in labels.items()}
    known = {node.name for node in nodes}
    has_unknown = any(name in names for name in known if isinstance(name, str))
    return replace(
        spec,
        name=plain(spec.name),
        labels=labels,
        nodes=[_known_after(node, known, names, any_unknown=has_unknown) for node in nodes],
    )


def _node_without_templates(node: FlowNode, plain: Any, marks: Collection[str]) -> FlowNode:
    texts = {"name": plain(node.name), "queue": plain(node.queue), "job": plain(node.job)}
    if is_unknown(node.rule, marks):
        texts["rule"] = Rule.ALL_SUCCESS
    if is_unknown(node.on_failure, marks):
        texts["on_failure"] = OnFailure.FAIL
    if not isinstance(node.after, str) and any(is_unknown(name, marks) for name in node.after):
        texts["after"] = [_plain_dependency(name, plain) for name in node.after]
    changed = {name: text for name, text in texts.items() if text is not getattr(node, name)}
    return replace(node, **changed) if changed else node


def _plain_dependency(name: Any, plain: Any) -> Any:
    text = plain(name)
    return Dependency(text, name.on_failure) if isinstance(name, Dependency) else text


def _known_after(
    node: FlowNode, known: Collection[str], names: TemplateNames, *, any_unknown: bool
) -> FlowNode:
    """The dependencies, without those that may be nodes whose names are templates."""
    if isinstance(node.after, str) or not (any_unknown or any(name in names for name in node.after)):
        return node
    sure = [name for name in node.after if name in known or not (any_unknown or name in names)]
    return replace(node, after=sure)


def _check_wire(wire: Mapping[str, Any], marks: Collection[str]) -> None:
    nodes = wire.get("nodes", ())
    if is_unknown(nodes, marks) or (
        isinstance(nodes, list | tuple)
        and (len(nodes) > CHECKED_NODES or any(is_unknown(node, marks) for node in nodes))
    ):
        return
    names = TemplateNames()
    found = _known(wire, "", names, marks)
    spec = FlowSpec.from_dict(found)
    known = {node.name for node in spec.nodes}
    has_unknown = any(name in names for name in known)
    nodes = [_known_after(node, known, names, any_unknown=has_unknown) for node in spec.nodes]
    _check_flow(replace(spec, nodes=nodes))


def _known(value: Any, field: str, names: TemplateNames, marks: Collection[str]) -> Any:
    """The known part of a flow file: with stand-ins for names, without optional fields that are templates."""
    if isinstance(value, Mapping):
        found = {}
        for key, part in value.items():
            if not is_unknown(part, marks):
                found[key] = _known(part, field if field in FREE else key, names, marks)
            elif field in ("labels", *FREE) or key in _REQUIRED:
                found[key] = names.of(part)
        return found
    if isinstance(value, list | tuple):
        kept = [part for part in value if field in ("after", *FREE) or not is_unknown(part, marks)]
        return [
            names.of(part) if is_unknown(part, marks) else _known(part, field, names, marks) for part in kept
        ]
    return value
