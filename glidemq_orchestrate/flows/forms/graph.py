"""Converts flows from and to networkx graphs: an edge leads from a dependency to its dependent.

Graphs are read through their methods, so networkx is imported only to create one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.errors import ConfigurationError, DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows.dependencies import Dependency, topological_order
from glidemq_orchestrate.flows.forms.file import NodeFile, as_file, without_defaults
from glidemq_orchestrate.flows.forms.fold import NamedNode, dependencies
from glidemq_orchestrate.foundation.importing import importing

if TYPE_CHECKING:
    import networkx as nx


def read(graph: Any, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
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


def write(nodes: Sequence[NamedNode], about: Mapping[str, Any]) -> nx.DiGraph[str]:
    """A graph with the fields of the nodes as attributes."""
    try:
        with importing():
            import networkx as nx
    except ImportError as exc:
        raise ConfigurationError("graphs need networkx: pip install 'glidemq-orchestrate[graph]'") from exc

    graph: nx.DiGraph[str] = nx.DiGraph(**about)
    for node in nodes:
        attributes = {key: value for key, value in without_defaults(node) if key not in ("name", "after")}
        graph.add_node(node.name, **attributes)
    for node in nodes:
        policies = {str(one): one.on_failure for one in node.after if isinstance(one, Dependency)}
        for name in dependencies(node):
            policy = policies.get(name)
            graph.add_edge(name, node.name, **({} if policy is None else {"on_failure": policy}))
    return graph
