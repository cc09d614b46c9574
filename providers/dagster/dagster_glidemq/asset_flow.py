"""A flow as assets: which nodes are assets, how they depend on each other, and the flow of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import dagster as dg

from dagster_glidemq.checks import GlideMQCheck, with_blocking
from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, check_flow
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow

Key: TypeAlias = dg.AssetKey | str | Sequence[str]


@dataclass(frozen=True)
class AssetPlan:
    """A flow as assets.

    Attributes:
        name: The name of the flow.
        after: The nodes in topological order, each with its dependencies.
        keys: The asset keys of the nodes that are assets.
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
        """Choose the leaves, the named nodes and the nodes with keys.

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
        """The specifications of the assets for Dagster.

        Args:
            given: By node, the other fields of its asset.
            deps: The dependencies of assets that have none in the flow.
            group_name: The group of assets without one.
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
        """The nearest of these nodes that a node depends on, directly or through others."""
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
        """These nodes and all their dependencies, direct and indirect."""
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
            InvalidFlow: It has other nodes or dependencies.
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


Builder: TypeAlias = Callable[[dg.AssetExecutionContext], FlowSpec]
PartitionBuilder: TypeAlias = Callable[[dg.AssetExecutionContext, str], FlowSpec]


class NodePartition(NamedTuple):
    """The declared node that a node of a run's flow represents, and the partition in a run of several."""

    node: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class BuiltFlow:
    """The flow of a run, and the declared nodes that its nodes represent."""

    spec: FlowSpec
    places: Mapping[str, NodePartition]

    def part(self, nodes: set[str]) -> FlowSpec:
        """The part of the flow that represents these declared nodes, which must include all dependencies."""
        return replace(
            self.spec, nodes=[node for node in self.spec.nodes if self.places[node.name].node in nodes]
        )

    def names(self, nodes: set[str]) -> list[str]:
        """The names of the nodes that represent these declared nodes."""
        return [name for name, place in self.places.items() if place.node in nodes]


@dataclass(frozen=True, slots=True)
class FlowBuilder:
    """Builds the flow of a run.

    Attributes:
        flow: The declared flow.
        build: Builds the flow of a run.
        build_partition: Builds the flow of a partition.
    """

    flow: FlowSpec
    build: Builder | None
    build_partition: PartitionBuilder | None

    def check(
        self, partitions_def: dg.PartitionsDefinition[str] | None, policy: dg.BackfillPolicy | None
    ) -> None:
        """Refuse arguments that contradict each other.

        Raises:
            ConfigurationError: The arguments contradict each other.
        """
        if self.build is not None and self.build_partition is not None:
            raise ConfigurationError("give build or build_partition, not both")
        if partitions_def is None and (policy is not None or self.build_partition is not None):
            raise ConfigurationError("backfill_policy and build_partition need partitions_def")
        may_be_several = policy is not None and policy.max_partitions_per_run != 1
        if may_be_several and self.build is not None:
            raise ConfigurationError(
                "a run may have several partitions by backfill_policy: give build_partition instead of build"
            )

    def make(
        self, context: dg.AssetExecutionContext, plan: AssetPlan, checks: Sequence[GlideMQCheck]
    ) -> BuiltFlow:
        """The flow of a run.

        Raises:
            InvalidFlow: The flow has other nodes or dependencies than declared.
        """
        if self.build_partition is None:
            made = self.flow if self.build is None else plan.check_same(self.build(context))
            return _alone(with_blocking(made, checks))
        flows = {
            key: with_blocking(plan.check_same(self.build_partition(context, key)), checks)
            for key in context.partition_keys
        }
        if len(flows) == 1:
            return _alone(*flows.values())
        first = next(iter(flows.values()))
        nodes = [_of_partition(node, key) for key, flow in flows.items() for node in flow.nodes]
        places = {
            _name(node.name, key): NodePartition(node.name, key)
            for key, flow in flows.items()
            for node in flow.nodes
        }
        return BuiltFlow(replace(first, nodes=nodes), places)


def _alone(spec: FlowSpec) -> BuiltFlow:
    return BuiltFlow(spec, {node.name: NodePartition(node.name) for node in spec.nodes})


def _name(node: str, key: str) -> str:
    return f"{node}[{key}]"


def _of_partition(node: FlowNode, key: str) -> FlowNode:
    """A node for one of several partitions."""
    after = [
        Dependency(_name(one, key), one.on_failure) if isinstance(one, Dependency) else _name(one, key)
        for one in node.after
    ]
    return replace(node, name=_name(node.name, key), after=after)
