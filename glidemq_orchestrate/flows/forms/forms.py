"""Other forms of a specification: files, graphs, drawings. The base class of ``FlowSpec``.

The modules for these forms are slow to import, so they are imported on use.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.forms.drawing import FOLD_FROM, dot, mermaid
from glidemq_orchestrate.flows.forms.fold import in_order
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.named import find

if TYPE_CHECKING:
    import networkx as nx

    from glidemq_orchestrate.flows.forms.fold import NamedNode


class _Spec(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> Sequence[NamedNode]: ...


S = TypeVar("S", bound=_Spec)


class FlowForms:
    """Converts a specification from and to other forms."""

    __slots__ = ()

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> Self:
        """Build from the form of a flow file."""
        raise NotImplementedError

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a flow file, YAML or JSON; ``glidemq flow schema`` prints its JSON Schema.

        JSON may have up to 256 MiB, YAML up to 16 MiB, 2,000,000 values and 100 levels. Aliases and merges
        are expanded, up to a limit. Reading takes up to some 25 times the size of the file in memory.

        Raises:
            ConfigurationError: The file cannot be read.
            InvalidFlow: It is not YAML or JSON, an object has a duplicate key, or it is not a flow; the
                message names the file, and the line or the field.
        """
        with importing():
            from glidemq_orchestrate.flows.forms.reader import read_object  # noqa: PLC0415  only for files

        wire = read_object(path)
        try:
            return cls.from_dict(wire)
        except InvalidFlow as exc:
            exc.args = (f"{path}: {exc}",)
            raise

    @classmethod
    def from_function(cls, function: str, /, **arguments: Any) -> Self:
        """Call ``package.module:function``, which returns a flow or its dict.

        Args:
            function: Its import path. The module is imported, which runs its code.
            arguments: Passed to it by name. Its own exceptions are not caught.

        Raises:
            ConfigurationError: There is no such function.
            InvalidFlow: It does not accept these arguments, or does not return a flow.
        """
        found = find(function, "flow").function
        try:
            inspect.signature(found).bind(**arguments)
        except (TypeError, ValueError) as exc:
            raise InvalidFlow(f"flow {function} cannot be called with these arguments: {exc}") from exc
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
    ) -> Self:
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
            from glidemq_orchestrate.flows.forms import graph as graphs  # noqa: PLC0415  imports pydantic

        defaults = {"queue": queue, "job": job}
        nodes = graphs.read(graph, {key: value for key, value in defaults.items() if value is not None})
        return cls.from_dict({"name": name, "nodes": nodes} | about)

    def to_dict(self) -> dict[str, Any]:
        """Return the form of a flow file; ``from_dict`` of it is an equal flow. Durations are ISO 8601."""
        with importing():
            from glidemq_orchestrate.flows.forms.file import as_file  # noqa: PLC0415  imports pydantic

        wire: dict[str, Any] = as_file(self)
        return wire

    def to_graph(self: _Spec) -> nx.DiGraph[str]:
        """Return a networkx ``DiGraph``; ``from_graph`` of it is an equal flow.

        Nodes have the fields that differ from their defaults as attributes; name, labels and the other
        fields of the specification are in ``.graph``.

        Raises:
            ConfigurationError: networkx is not installed; it comes with the extra ``graph``.
        """
        with importing():
            from glidemq_orchestrate.flows.forms import graph as graphs  # noqa: PLC0415  imports pydantic

        about = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "nodes"}  # type: ignore[arg-type]
        return graphs.write(self.nodes, about)

    def to_mermaid(self: _Spec, *, fold: int | None = FOLD_FROM) -> str:
        """Draw as a Mermaid flowchart.

        Args:
            fold: Fan-outs of at least this many nodes are drawn as one: nodes whose names differ only by
                numbers and that wait for the same nodes. None folds nothing.

        Raises:
            CycleError, DuplicateNode, UnknownDependency: It cannot be drawn.
        """
        return mermaid(in_order(self.nodes), at_least=fold)

    def to_dot(self: _Spec, *, fold: int | None = FOLD_FROM) -> str:
        """Draw in the DOT language of Graphviz. For ``fold`` and errors see ``to_mermaid``."""
        return dot(self.name, in_order(self.nodes), at_least=fold)
