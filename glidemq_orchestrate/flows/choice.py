"""How users select nodes: checks the arguments of public methods, and matches their patterns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.node_changes import Chosen, chosen, node_names
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.foundation.names import described


class Choice(Chosen):
    """``Chosen``, but square brackets in name patterns match as a character class or literally.

    Nodes of a fan-out have brackets in their names: ``item[1]`` matches one of them, ``clean[*]`` a whole
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
    """Return the selection that the arguments of a public method make.

    Raises:
        ConfigurationError: They make none or two, or one of them has the wrong type.
    """
    if node is not None:
        _check_text("node", node)
    for name, value in (("pattern", pattern), ("state", state), ("error", error)):
        _check_text(name, value)
    found = chosen(node, nodes=_names(nodes), pattern=pattern, state=state, error=error)
    return Choice(found.names, found.pattern, found.state, found.error)


def starts(nodes: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names of the nodes from which on a flow reruns; None for all of it.

    Raises:
        ConfigurationError: There are none, or they are not names.
    """
    if nodes is None:
        return None
    names = node_names(_names(nodes))
    if not names:
        raise ConfigurationError("nodes is empty. Fix: name some, or omit it to rerun the whole flow")
    return names


def check_dependents(dependents: object) -> bool:
    """Whether dependents rerun too.

    Raises:
        ConfigurationError: It is not a bool.
    """
    if not isinstance(dependents, bool):
        raise ConfigurationError(f"dependents must be bool, got {described(dependents)}")
    return dependents


def _names(nodes: Iterable[str]) -> Iterable[str]:
    if isinstance(nodes, str):
        return nodes  # ``node_names`` reports the error
    names = list(nodes)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"nodes must be a list of node names, got {described(name)} in it")
    return names


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be str, got {described(value)}")
