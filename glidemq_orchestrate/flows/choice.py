"""How users choose nodes: the arguments of public methods, checked, and what their patterns match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.node_changes import Chosen, chosen, node_names
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.foundation.names import described


class Choice(Chosen):
    """``Chosen``; square brackets in the pattern of names are a class of characters, and themselves too.

    The nodes of a fan-out have them in their names: ``item[1]`` matches that one, ``clean[*]`` all of its
    fan-out, and ``part-[12]`` two nodes.
    """

    def includes(self, node: NodeStatus) -> bool:
        """Whether a node matches every filter."""
        return Chosen.includes(self, node) or ("[" in self.pattern and self._includes_literally(node))

    def _includes_literally(self, node: NodeStatus) -> bool:
        return Chosen.includes(replace(self, pattern=self.pattern.replace("[", "[[]")), node)


def choice(
    node: str | None,
    *,
    nodes: Iterable[str] = (),
    pattern: str = "",
    state: str = "",
    error: str = "",
) -> Choice:
    """Nodes as the arguments of a public method choose them.

    Raises:
        ConfigurationError: They do not choose any, or in two ways, or one of them is of another type.
    """
    if node is not None:
        _check_text("node", node)
    for name, given in (("pattern", pattern), ("state", state), ("error", error)):
        _check_text(name, given)
    found = chosen(node, nodes=_names(nodes), pattern=pattern, state=state, error=error)
    return Choice(found.names, found.pattern, found.state, found.error)


def starts(nodes: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names of the nodes from which on a flow is to run again; None: all of it.

    Raises:
        ConfigurationError: There are none, or they are no names.
    """
    if nodes is None:
        return None
    names = node_names(_names(nodes))
    if not names:
        raise ConfigurationError("nodes is empty: name some, or leave it out to run all of the flow again")
    return names


def check_dependents(dependents: object) -> bool:
    """Whether what follows runs again too.

    Raises:
        ConfigurationError: It is no bool.
    """
    if not isinstance(dependents, bool):
        raise ConfigurationError(f"dependents must be bool, got {described(dependents)}")
    return dependents


def _names(nodes: Iterable[str]) -> Iterable[str]:
    if isinstance(nodes, str):
        return nodes  # ``node_names`` says what is wrong with it
    names = list(nodes)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"nodes must be a list of node names, got {described(name)} in it")
    return names


def _check_text(name: str, given: object) -> None:
    if not isinstance(given, str):
        raise ConfigurationError(f"{name} must be str, got {described(given)}")
