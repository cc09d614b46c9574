"""A flow as assets: which nodes are assets, with which keys, and how they depend on each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import dagster as dg

from glidemq_orchestrate import FlowSpec, check_flow
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow

Key: TypeAlias = dg.AssetKey | str | Sequence[str]


@dataclass(frozen=True)
class AssetPlan:
    """A flow as assets.

    Attributes:
        name: Of the flow.
        after: The nodes in topological order, each with its dependencies.
        keys: The keys of those that are assets.
        queues: The queue of each node.
    """

    name: str
    after: dict[str, tuple[str, ...]]
    keys: dict[str, dg.AssetKey]
    queues: dict[str, str]

    @classmethod
    def of(
        cls,
        flow: FlowSpec,
        nodes: Iterable[str],
        asset_keys: Mapping[str, Key],
        key_prefix: Sequence[str],
    ) -> AssetPlan:
        """Choose leaves, the named nodes and those with keys.

        Raises:
            ConfigurationError: A node is unknown, or two nodes would have one key.
            InvalidFlow: The flow cannot run as written.
        """
        if isinstance(nodes, str):
            raise ConfigurationError(f"nodes must be a list of names, got the text {nodes!r:.100}")
        checked, chosen = check_flow(flow).nodes, set(nodes)
        after = {node.name: node.after for node in checked}
        if unknown := sorted({*chosen, *asset_keys} - set(after)):
            raise ConfigurationError(
                f"flow {flow.name} has no node {', '.join(unknown)}; it has {', '.join(list(after)[:20])}"
            )
        keys: dict[str, dg.AssetKey] = {}
        for node in checked:
            if node.name in asset_keys:
                keys[node.name] = dg.AssetKey.from_coercible(asset_keys[node.name])
            elif node.name in chosen or not node.dependents:
                keys[node.name] = dg.AssetKey([*key_prefix, identifier(node.name)])
        for key in keys.values():
            if len(same := [name for name, other in keys.items() if other == key]) > 1:
                raise ConfigurationError(
                    f"nodes {' and '.join(same)} of flow {flow.name} have the same asset key, "
                    f"{key.to_user_string()}: give them others, as in asset_keys={{{same[0]!r}: 'other'}}"
                )
        return cls(flow.name, after, keys, {node.name: node.queue for node in checked})

    def specs(
        self, given: Mapping[str, dg.AssetSpec], deps: Sequence[dg.AssetKey | str], group_name: str | None
    ) -> list[dg.AssetSpec]:
        """What Dagster is told of each asset.

        Args:
            given: By node, everything else that is known of its asset.
            deps: Of assets without a dependency in the flow.
            group_name: For assets without one.
        """
        return [self._spec(node, given.get(node), deps, group_name) for node in self.keys]

    def _spec(
        self,
        node: str,
        given: dg.AssetSpec | None,
        deps: Sequence[dg.AssetKey | str],
        group_name: str | None,
    ) -> dg.AssetSpec:
        own = given or dg.AssetSpec(self.keys[node])
        inside = [self.keys[name] for name in self.nearest(node, self.keys)]
        return own.replace_attributes(
            deps=[*own.deps, *(inside or deps)],
            skippable=True,
            group_name=own.group_name or group_name,
            kinds={*own.kinds, "glidemq"},
            metadata={**own.metadata, "glidemq/node": node, "glidemq/queue": self.queues[node]},
        )

    def nearest(self, node: str, among: Iterable[str]) -> list[str]:
        """The nodes among these that it depends on, directly or through others."""
        chosen, found = set(among), dict[str, None]()
        open_nodes, seen = list(self.after[node]), set(self.after[node])
        while open_nodes:
            dependency = open_nodes.pop(0)
            if dependency in chosen:
                found[dependency] = None
                continue
            further = [name for name in self.after[dependency] if name not in seen]
            seen.update(further)
            open_nodes.extend(further)
        return list(found)

    def needed(self, wanted: Iterable[str]) -> set[str]:
        """These nodes and all that they depend on."""
        found: set[str] = set()
        open_nodes = list(wanted)
        while open_nodes:
            name = open_nodes.pop()
            if name not in found:
                found.add(name)
                open_nodes.extend(self.after[name])
        return found

    def check_same(self, made: FlowSpec) -> FlowSpec:
        """Return a flow if it has the declared nodes and dependencies.

        Raises:
            InvalidFlow: It has not.
        """
        after = {node.name: node.after for node in check_flow(made).nodes}
        if after != self.after:
            changed = sorted({node for node, _ in self.after.items() ^ after.items()})
            raise InvalidFlow(
                f"build made a flow with other nodes or dependencies than declared: see {', '.join(changed)}"
            )
        return made


def identifier(name: str) -> str:
    """The name with ``_`` for characters that Dagster does not allow."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
