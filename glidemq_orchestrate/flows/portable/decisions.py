"""Decides whether waiting nodes of a portable flow run, fail or are skipped. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.flows.dependencies import UPSTREAM, Rule, counts_as, verdict
from glidemq_orchestrate.flows.portable.table import _ENDED, Node

_FAILED: Final = "upstream failed: "


@dataclass(slots=True)
class Decisions:
    """The decisions on waiting nodes."""

    run: list[Node]
    fail: list[Node]
    skip: list[Node]


def decide(nodes: Sequence[Node], begun_ms: Callable[[int], int], now_ms: int) -> Decisions:
    """Decide on every waiting node; sets the state and reason of those that end.

    Works in topological order, so that a failure reaches its last dependent in one pass; but an end that is
    ``is_unsure`` decides nothing. ``begun_ms``: when a round began.
    """
    by_name = {node.name: node for node in nodes}
    decisions = Decisions([], [], [])
    for node in nodes:
        if node.state != "waiting-children":
            continue
        what, dependency, is_sure = _verdict(node, by_name)
        if what == "run" and _due_ms(node, by_name, begun_ms) <= now_ms:
            decisions.run.append(node)
        elif what in ("failed", "skipped"):
            node.state, node.is_unsure = what, not is_sure
            node.reason = _reason(dependency)
            node.ended_ms = now_ms
            (decisions.fail if what == "failed" else decisions.skip).append(node)
    return decisions


def delayed_until(nodes: Sequence[Node], begun_ms: Callable[[int], int]) -> dict[str, int]:
    """When each node that only waits for its own delay may run, in ms since the epoch."""
    by_name = {node.name: node for node in nodes}
    waiting = [node for node in nodes if node.state == "waiting-children" and node.policy.delay_ms]
    return {
        node.name: _due_ms(node, by_name, begun_ms) for node in waiting if _verdict(node, by_name)[0] == "run"
    }


def _verdict(node: Node, by_name: Mapping[str, Node]) -> tuple[str | None, Node | None, bool]:
    """The verdict of the node's rule, the dependency that caused it, and whether all clients agree on it.

    With ``all_success`` the first failed or skipped dependency decides; clients may see different ones first.
    """
    effects: list[tuple[str, Node]] = []
    for dependency in (by_name[name] for name in node.after):
        if end := dependency.end:
            own = (node.policy.policies or {}).get(dependency.name)
            effects.append((counts_as(end, own or dependency.policy.on_failure), dependency))
    found = Counter(effect for effect, _ in effects)
    completed, failed, skipped = (found[end] for end in _ENDED)
    what = verdict(node.policy.rule, completed, failed, skipped, total=len(node.after))
    against = next((one for effect, one in effects if effect == what), effects[0][1] if effects else None)
    is_sure = node.policy.rule is not Rule.ALL_SUCCESS or (
        completed + failed + skipped == len(node.after) and not (failed and skipped)
    )
    return what, against, is_sure


def _reason(dependency: Node | None) -> str:
    """Why a node cannot run: names the root of a chain of failures."""
    if dependency is None:
        return UPSTREAM
    if dependency.end == "failed" and dependency.reason.startswith(_FAILED):
        return dependency.reason
    return f"{UPSTREAM}{dependency.end}: {dependency.name}"


def _due_ms(node: Node, by_name: Mapping[str, Node], begun_ms: Callable[[int], int]) -> int:
    """When a delayed node may run: its delay counts from the end of its last dependency in its round."""
    if not node.policy.delay_ms:
        return 0
    return (
        max(begun_ms(node.round), *(by_name[name].ended_ms for name in node.after), 0) + node.policy.delay_ms
    )
