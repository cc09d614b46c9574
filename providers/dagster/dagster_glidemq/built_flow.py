"""The flow of one run of assets: for one partition, or for several of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import dagster as dg

from dagster_glidemq.asset_plan import AssetPlan
from dagster_glidemq.checks import GlideMQCheck, with_blocking
from glidemq_orchestrate import Dependency, FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError

Builder: TypeAlias = Callable[[dg.AssetExecutionContext], FlowSpec]
PartitionBuilder: TypeAlias = Callable[[dg.AssetExecutionContext, str], FlowSpec]


class NodePartition(NamedTuple):
    """What a node of the flow of a run stands for: a declared node, and its partition in a run of several."""

    node: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class BuiltFlow:
    """The flow of a run, and what its nodes stand for."""

    spec: FlowSpec
    places: Mapping[str, NodePartition]

    def part(self, nodes: set[str]) -> FlowSpec:
        """The flow with those nodes only that stand for these, which must be complete."""
        return replace(
            self.spec, nodes=[node for node in self.spec.nodes if self.places[node.name].node in nodes]
        )

    def names(self, nodes: set[str]) -> list[str]:
        """The names of those nodes that stand for these."""
        return [name for name, place in self.places.items() if place.node in nodes]


@dataclass(frozen=True, slots=True)
class FlowBuilder:
    """How the flow of a run is made.

    Attributes:
        flow: As it was declared.
        build: For a run.
        build_partition: For a partition.
    """

    flow: FlowSpec
    build: Builder | None
    build_partition: PartitionBuilder | None

    def check(
        self, partitions_def: dg.PartitionsDefinition[str] | None, policy: dg.BackfillPolicy | None
    ) -> None:
        """Refuse ways that do not fit each other.

        Raises:
            ConfigurationError: They do not.
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
            InvalidFlow: It has other nodes or dependencies than the declared one.
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
    """A node of one of several partitions."""
    after = [
        Dependency(_name(one, key), one.on_failure) if isinstance(one, Dependency) else _name(one, key)
        for one in node.after
    ]
    return replace(node, name=_name(node.name, key), after=after)
