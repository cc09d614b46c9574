"""Asset checks of a flow: which node decides each, and what its result says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_glidemq.metadata import result_metadata
from glidemq_orchestrate import FlowSpec, NodeStatus
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.jobs.attempt import NOT_PASSED, has_passed
from glidemq_orchestrate.runs import Json, in_text


@dataclass(frozen=True, slots=True)
class GlideMQCheck:
    """An asset check that a node of a flow decides.

    It passes when the node completes, unless the result says otherwise: ``False``, ``{"passed": false}``, or
    such a part in ``{"checks": [{"name", "passed", "severity", "metadata"}, ...]}``. Of several checks of
    one node each has the part with its name; one whose name no part has takes the result as a whole.

    A node that fails fails its checks; one that was skipped or cancelled says nothing about them.

    Attributes:
        node: The node.
        name: Name of the check.
        asset: The node whose asset is checked; None: the node itself.
        blocking: What follows the node in the flow, and the assets downstream of the flow, do not run when it
            does not pass. The node gets ``JobOptions(must_pass=True)``, so it blocks as a whole: a part that
            shall only warn says ``"severity": "WARN"``. A worker of Node.js must fail the job instead.
        severity: Of a failure; a part of a result with a ``severity`` has its own.
        description: For the UI.
    """

    node: str
    name: str = "quality"
    asset: str | None = None
    blocking: bool = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    description: str | None = None

    @property
    def asset_node(self) -> str:
        """The node whose asset is checked."""
        return self.asset or self.node

    def spec(self, key: dg.AssetKey) -> dg.AssetCheckSpec:
        """What Dagster is told of it."""
        return dg.AssetCheckSpec(
            self.name,
            asset=key,
            blocking=self.blocking,
            description=self.description,
            metadata={"glidemq/node": self.node},
        )

    def result(self, key: dg.AssetKey, node: NodeStatus, result: Json) -> dg.AssetCheckResult | None:
        """What an ended node says; None if nothing."""
        if node.state == "completed" or node.reason == NOT_PASSED:
            found = result if node.state == "completed" else node.progress
            part = self._part(found)
            return dg.AssetCheckResult(
                asset_key=key,
                check_name=self.name,
                passed=has_passed(_without_severity(part)),
                severity=self._severity(part),
                metadata=_metadata(part),
            )
        if node.state != "failed" or node.reason.startswith(("upstream failed: ", "cancelled: ")):
            return None
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=self.name,
            passed=False,
            severity=self.severity,
            metadata={"reason": dg.MetadataValue.text(in_text(node.reason))},
        )

    def _part(self, result: Json) -> Json:
        checks = result.get("checks") if isinstance(result, dict) else None
        parts = checks if isinstance(checks, list) else []
        named = [part for part in parts if isinstance(part, dict) and part.get("name") == self.name]
        return named[0] if named else result

    def _severity(self, part: Json) -> dg.AssetCheckSeverity:
        said = str(part.get("severity", "")).upper() if isinstance(part, dict) else ""
        return {
            "WARN": dg.AssetCheckSeverity.WARN,
            "WARNING": dg.AssetCheckSeverity.WARN,
            "ERROR": dg.AssetCheckSeverity.ERROR,
        }.get(said, self.severity)


def _without_severity(part: Json) -> Json:
    return (
        {name: value for name, value in part.items() if name != "severity"}
        if isinstance(part, dict)
        else part
    )


def _metadata(part: Json) -> dict[str, dg.MetadataValue]:
    own: Any = part.get("metadata") if isinstance(part, dict) else None
    found = result_metadata(part)
    for name, value in (own if isinstance(own, dict) else {}).items():
        found |= {str(name): one for one in result_metadata(value, "value").values()}
    return found


def with_blocking(flow: FlowSpec, checks: Sequence[GlideMQCheck]) -> FlowSpec:
    """The flow in which nodes with blocking checks fail if these do not pass."""
    blocking = {check.node for check in checks if check.blocking}
    nodes = [
        replace(node, options=replace(node.options, must_pass=True)) if node.name in blocking else node
        for node in flow.nodes
    ]
    return replace(flow, nodes=nodes) if blocking else flow


def check_checks(flow: FlowSpec, checks: Sequence[GlideMQCheck]) -> None:
    """Refuse checks of nodes that the flow does not have, and two of one name for one asset.

    Raises:
        ConfigurationError: There are such.
    """
    known = {node.name for node in flow.nodes}
    if unknown := sorted({name for check in checks for name in (check.node, check.asset_node)} - known):
        raise ConfigurationError(f"flow {flow.name} has no node {', '.join(unknown)}, of which a check is")
    seen: set[tuple[str, str]] = set()
    for check in checks:
        if (check.asset_node, check.name) in seen:
            raise ConfigurationError(
                f"node {check.asset_node} of flow {flow.name} has two checks with the name {check.name}: "
                "give them different names"
            )
        seen.add((check.asset_node, check.name))


def by_node(checks: Sequence[GlideMQCheck]) -> Mapping[str, list[GlideMQCheck]]:
    """The checks that each node decides."""
    found: dict[str, list[GlideMQCheck]] = {}
    for check in checks:
        found.setdefault(check.node, []).append(check)
    return found
