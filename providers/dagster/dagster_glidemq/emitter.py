"""Turns ended nodes into events of Dagster: each asset once, after those that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg

from dagster_glidemq.asset_plan import AssetPlan
from dagster_glidemq.built_flow import NodePartition
from dagster_glidemq.checks import GlideMQCheck, by_node
from dagster_glidemq.metadata import Metadata, node_metadata
from glidemq_orchestrate import FlowStatus, NodeStatus
from glidemq_orchestrate.runs import Changes, Json

Event = dg.MaterializeResult[Any] | dg.AssetCheckResult


@dataclass(slots=True)
class Selection:
    """What a run shall tell of: assets and checks."""

    assets: set[dg.AssetKey]
    checks: set[dg.AssetCheckKey]

    @classmethod
    def of(cls, context: dg.AssetExecutionContext) -> Selection:
        """What is selected in a run."""
        return cls(set(context.selected_asset_keys), set(context.selected_asset_check_keys))

    def nodes(self, plan: AssetPlan, checks: Sequence[GlideMQCheck]) -> set[str]:
        """The nodes that make it."""
        found = {node for node, key in plan.keys.items() if key in self.assets}
        return found | {check.node for check in checks if self.has(plan, check)}

    def has(self, plan: AssetPlan, check: GlideMQCheck) -> bool:
        """Whether a check is selected."""
        return dg.AssetCheckKey(plan.keys[check.asset_node], check.name) in self.checks


@dataclass(slots=True)
class Emitter:
    """The events of one run.

    Attributes:
        context: The step.
        plan: The flow as assets.
        selection: What to tell of.
        checks: All checks of the flow.
        places: What each node of the run's flow stands for.
        told: Assets and partitions that an earlier try of the step has told of.
        link: The link to a flow, or "".
    """

    context: dg.AssetExecutionContext
    plan: AssetPlan
    selection: Selection
    checks: Sequence[GlideMQCheck]
    places: Mapping[str, NodePartition]
    told: set[tuple[dg.AssetKey, str | None]]
    link: Callable[[str], str]
    _names: dict[NodePartition, str] = field(init=False)
    _ended: dict[str, NodeStatus] = field(init=False, default_factory=dict)
    _open: dict[str, set[str]] = field(init=False)
    _followers: dict[str, list[str]] = field(init=False, default_factory=dict)
    _said: dict[GlideMQCheck, list[dg.AssetCheckResult | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Note which nodes wait for which to be told of."""
        self._names = {place: name for name, place in self.places.items()}
        wanted = self.selection.nodes(self.plan, self.checks)
        before = {node: self._before(node, wanted) for node in wanted}
        self._open = {}
        for name, place in self.places.items():
            if place.node in wanted:
                waits = {self._names[NodePartition(node, place.partition)] for node in before[place.node]}
                self._open[name] = waits
                for one in waits:
                    self._followers.setdefault(one, []).append(name)

    def events(self, change: Changes) -> Iterator[Event]:
        """The events that are due now."""
        again = [node for node in change.ended if node.name in self._ended and node.name not in self._open]
        self._ended |= {node.name: node for node in change.ended}
        due = self._due(change)
        told = [node for node in (*due, *again) if self._is_told_of(node)]
        results = change.results([node.name for node in told if node.state == "completed"]) if told else {}
        for node in due:
            yield from self._outcome(node, results.get(node.name), change.status)
        for node in again:
            if node.state == "completed" and self.places[node.name].node in self.plan.keys:
                self._log(node, self._metadata(node, results.get(node.name), change.status))

    def _before(self, node: str, wanted: set[str]) -> set[str]:
        """The wanted nodes of which is told before a node."""
        mine = by_node(self.checks).get(node, ())
        assets = {check.asset_node for check in mine} & wanted - {node}
        return {*self.plan.nearest(node, wanted), *assets}

    def _due(self, change: Changes) -> list[NodeStatus]:
        """The nodes of which nothing more is waited for; at the end of the flow all that have ended."""
        due: list[NodeStatus] = []
        todo = [node.name for node in change.ended if node.name in self._open]
        while todo:
            name = todo.pop(0)
            if name in self._ended and name in self._open and not self._open[name]:
                del self._open[name]
                due.append(self._ended[name])
                for follower in self._followers.get(name, ()):
                    self._open.get(follower, set()).discard(name)
                    todo.append(follower)
        if change.status.state.is_terminal:
            rest = [name for name in self._open if name in self._ended]
            due += [self._ended[name] for name in rest]
            for name in rest:
                del self._open[name]
        return due

    def _is_told_of(self, node: NodeStatus) -> bool:
        place = self.places[node.name]
        return place.node in self.plan.keys or any(check.node == place.node for check in self.checks)

    def _outcome(self, node: NodeStatus, result: Json, status: FlowStatus) -> Iterator[Event]:
        place = self.places[node.name]
        checks = by_node(self.checks).get(place.node, ())
        found = {check: check.result(self.plan.keys[check.asset_node], node, result) for check in checks}
        # A blocking check fails its node, whose handler has run to its end all the same.
        did_run = node.state == "completed" or any(
            one is not None and "reason" not in (one.metadata or {}) for one in found.values()
        )
        key = self.plan.keys.get(place.node)
        if did_run and key in self.selection.assets and (key, place.partition) not in self.told:
            value = result if node.state == "completed" else node.progress
            metadata = self._metadata(node, value, status)
            if place.partition is None:
                yield dg.MaterializeResult(asset_key=key, metadata=metadata)
            else:
                self._log(node, metadata)
        for check, one in found.items():
            if self.selection.has(self.plan, check):
                yield from self._check(check, one, place)

    def _check(
        self, check: GlideMQCheck, one: dg.AssetCheckResult | None, place: NodePartition
    ) -> Iterator[dg.AssetCheckResult]:
        """The result of a check; in a run of several partitions one for all, with the last of them."""
        if place.partition is None:
            if one is not None:
                yield one
            return
        said = self._said.setdefault(check, [])
        if one is None:
            said.append(None)
        else:
            marked = {**(one.metadata or {}), "glidemq/partition": dg.MetadataValue.text(place.partition)}
            said.append(one._replace(metadata=marked))
        is_last = len(said) == sum(other.node == place.node for other in self.places.values())
        results = [result for result in said if result is not None]
        if is_last and results:
            failed = [result for result in results if not result.passed]
            names = [result.metadata["glidemq/partition"].value for result in failed]
            worst = (
                [one for one in failed if one.severity is dg.AssetCheckSeverity.ERROR] or failed or results
            )
            metadata = {**worst[0].metadata, "glidemq/failed_partitions": dg.MetadataValue.json(names)}
            yield worst[0]._replace(metadata=metadata)

    def _log(self, node: NodeStatus, metadata: Metadata) -> None:
        """Tell of an asset beside the outputs of the step: one of several partitions, or again."""
        place = self.places[node.name]
        key, partition = self.plan.keys[place.node], place.partition
        if partition is None and self.context.has_partition_key:
            partition = self.context.partition_key
        if key in self.selection.assets:
            self.context.log_event(dg.AssetMaterialization(key, partition=partition, metadata=metadata))

    def _metadata(self, node: NodeStatus, result: Json, status: FlowStatus) -> Metadata:
        return node_metadata(
            node,
            result,
            flow_id=status.id,
            link=self.link(status.id),
            ready_at=self._ready_at(node, status),
        )

    def _ready_at(self, node: NodeStatus, status: FlowStatus) -> datetime | None:
        """When a node could begin; unknown of one that was run again."""
        if node.run:
            return None
        ends = [self._ended[name].finished_at for name in node.after if name in self._ended]
        if len(ends) < len(node.after) or None in ends:
            return None
        return max((end for end in ends if end is not None), default=status.created_at)
