"""Dependencies between nodes: the order that they require, trigger rules and failure policies. Pure.

On the staged path the server applies the rules: see ``lua/glidemq_orchestrate/parts/rules.lua``. On the
portable path, ``verdict`` does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any, Final, Self, TypeAlias

from glidemq_orchestrate.errors import CycleError, DuplicateNode, InvalidFlow, UnknownDependency
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import described

UPSTREAM: Final = "upstream "


class OnFailure(StrEnum):
    """How the failure of a node counts for its dependents.

    The dependent's rule applies to the result. The failure still fails the flow, except with ``IGNORE`` on
    the failed node itself.
    """

    FAIL = "fail"
    """It counts as a failure."""
    IGNORE = "ignore"
    """It counts as completed. Set on the node itself, its failure does not fail the flow either."""
    SKIP = "skip"
    """It counts as skipped; the flow fails."""
    ALL_DONE = "all_done"
    """It counts as completed, and so does a skipped node: the dependent runs in any case; the flow fails."""


class Rule(StrEnum):
    """When a node with dependencies runs. Names and meanings are those of Airflow's trigger rules.

    A node ends as failed or skipped as soon as its rule can no longer be met. A node without dependencies
    runs immediately with any rule.
    """

    ALL_SUCCESS = "all_success"
    """All have completed. It fails with the first failure, and is skipped with the first skipped one."""
    ALL_FAILED = "all_failed"
    """All have failed; else it is skipped."""
    ALL_DONE = "all_done"
    """All have ended, in any state."""
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    """All have ended, none was skipped (else it is skipped), and one has completed (else it fails)."""
    ALL_SKIPPED = "all_skipped"
    """All were skipped; else it is skipped."""
    ONE_SUCCESS = "one_success"
    """One has completed; does not wait for the others. If none has, it fails, or is skipped if all were."""
    ONE_FAILED = "one_failed"
    """One has failed; does not wait for the others. If none has, it is skipped."""
    ONE_DONE = "one_done"
    """One has completed or failed; does not wait for the others. If all were skipped, it is skipped."""
    NONE_FAILED = "none_failed"
    """All have completed or were skipped. It fails with the first failure."""
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    """Like ``none_failed``, and one has completed; skipped if all were."""
    NONE_SKIPPED = "none_skipped"
    """All have completed or failed. It is skipped with the first skipped one."""
    ALWAYS = "always"
    """Immediately: dependencies only select its inputs, if they have completed by then."""


EARLY: Final = (Rule.ONE_SUCCESS, Rule.ONE_FAILED, Rule.ONE_DONE, Rule.ALWAYS)
"""The rules under which a node may run before all its dependencies have ended."""


class Dependency(str):
    """The name of a dependency, with the policy for its failure.

    Usable like the plain name: ``after=["load", Dependency("audit", on_failure="ignore")]``.

    Args:
        name: The node to wait for.
        on_failure: By default that of the node ``name``.

    Raises:
        InvalidFlow: The policy is unknown.
    """

    __slots__ = ("on_failure",)

    on_failure: OnFailure | None

    def __new__(cls, name: str, on_failure: OnFailure | str | None = None) -> Self:
        """Create the name with its policy."""
        if not isinstance(name, str):
            raise InvalidFlow(f"a dependency must be the name of a node, got {described(name)}")
        made = super().__new__(cls, name)
        made.on_failure = None if on_failure is None else read_policy(on_failure, where=f"dependency {name}")
        return made

    @property
    def name(self) -> str:
        """The plain name."""
        return str(self)

    def __repr__(self) -> str:
        """The expression that creates it."""
        if self.on_failure is None:
            return super().__repr__()
        return f"Dependency({str(self)!r}, {str(self.on_failure)!r})"

    def __getnewargs__(self) -> tuple[str, OnFailure | None]:  # type: ignore[override]
        """Keep the policy in copies and pickles."""
        return str(self), self.on_failure


def counts_as(end: str, policy: OnFailure | None) -> str:
    """How the end of a dependency counts under a policy: completed, failed or skipped."""
    if policy is OnFailure.ALL_DONE or (policy is OnFailure.IGNORE and end == "failed"):
        return "completed"
    return "skipped" if policy is OnFailure.SKIP and end == "failed" else end


_Decide: TypeAlias = Callable[[int, int, int, int], str | None]
_VERDICT: Final[Mapping[Rule, _Decide]] = {
    Rule.ALL_SUCCESS: lambda c, f, k, n: "failed" if f else "skipped" if k else _run(c == n),
    Rule.ALL_FAILED: lambda c, f, k, n: "skipped" if c + k else _run(f == n),
    Rule.ALL_SKIPPED: lambda c, f, k, n: "skipped" if c + f else _run(k == n),
    Rule.ALL_DONE: lambda c, f, k, n: _run(c + f + k == n),
    Rule.ALL_DONE_MIN_ONE_SUCCESS: lambda c, f, k, n: (
        "skipped" if k else "failed" if f == n else _run(c + f == n)
    ),
    Rule.ONE_SUCCESS: lambda c, f, k, n: (
        "run" if c else "skipped" if k == n else "failed" if f + k == n else None
    ),
    Rule.ONE_FAILED: lambda c, f, k, n: "run" if f else "skipped" if c + k == n else None,
    Rule.ONE_DONE: lambda c, f, k, n: "run" if c + f else "skipped" if k == n else None,
    Rule.NONE_FAILED: lambda c, f, k, n: "failed" if f else _run(c + k == n),
    Rule.NONE_FAILED_MIN_ONE_SUCCESS: lambda c, f, k, n: (
        "failed" if f else "skipped" if k == n else _run(c + k == n)
    ),
    Rule.NONE_SKIPPED: lambda c, f, k, n: "skipped" if k else _run(c + f == n),
    Rule.ALWAYS: lambda _c, _f, _k, _n: "run",
}


def _run(is_due: bool) -> str | None:  # noqa: FBT001  a condition
    return "run" if is_due else None


def verdict(rule: Rule, completed: int, failed: int, skipped: int, *, total: int) -> str | None:
    """The decision on a node: ``run``, ``failed`` or ``skipped``; None while it is open.

    It depends on how many of its ``total`` dependencies count as completed, failed and skipped so far.
    """
    return _VERDICT[rule](completed, failed, skipped, total) if total else "run"


_POLICIES: Final[dict[str, OnFailure]] = {member.value: member for member in OnFailure}
_RULES: Final[dict[str, Rule]] = {member.value: member for member in Rule}


def read_policy(value: str, *, where: str) -> OnFailure:
    """The policy with this name.

    Raises:
        InvalidFlow: There is no such policy.
    """
    if isinstance(value, str) and (found := _POLICIES.get(value)) is not None:
        return found
    raise InvalidFlow(f"{where}: on_failure {described(value)} is unknown{_suggestion(value, OnFailure)}")


def read_rule(value: str, *, where: str) -> Rule:
    """The rule with this name.

    Raises:
        InvalidFlow: There is no such rule.
    """
    if isinstance(value, str) and (found := _RULES.get(value)) is not None:
        return found
    raise InvalidFlow(f"{where}: rule {described(value)} is unknown{_suggestion(value, Rule)}")


def _suggestion(value: object, names: type[StrEnum]) -> str:
    *first, last = names
    return did_you_mean(value, names) or f"; use {', '.join(first)} or {last}"


def check_unique(names: Sequence[str]) -> None:
    """Refuse duplicate names.

    Raises:
        DuplicateNode: It lists the duplicate names.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DuplicateNode(repeated)


def check_known(after: Mapping[str, Sequence[str]]) -> None:
    """Refuse dependencies that are not among the names.

    Raises:
        UnknownDependency: It maps each dependent to its unknown dependencies.
    """
    unknown = {
        name: missing
        for name, others in after.items()
        if others and (missing := [str(one) for one in others if one not in after])
    }
    if unknown:
        (first, *_), *more = unknown.values()
        raise UnknownDependency(unknown, "" if more else did_you_mean(first, after))


def topological_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The names with every dependency before its dependents; otherwise in the original order.

    Raises:
        CycleError: There is no such order.
    """
    names = list(after)
    if _is_ordered(after):
        return names
    ranks = {name: rank for rank, name in enumerate(names)}
    dependents: list[list[int]] = [[] for _ in names]
    missing = []
    for rank, dependencies in enumerate(map(set, after.values())):
        missing.append(len(dependencies))
        for dependency in dependencies:
            dependents[ranks[dependency]].append(rank)
    ready = [rank for rank, count in enumerate(missing) if not count]
    order = []
    while ready:
        rank = heappop(ready)
        order.append(names[rank])
        for dependent in dependents[rank]:
            missing[dependent] -= 1
            if not missing[dependent]:
                heappush(ready, dependent)
    if len(order) < len(names):
        raise CycleError(_cycle(after, set(order)))
    return order


def _is_ordered(after: Mapping[str, Sequence[str]]) -> bool:
    """Whether the names already have this order, as most flows do."""
    before: set[str] = set()
    for name, dependencies in after.items():
        if dependencies and not before.issuperset(dependencies):
            return False
        before.add(name)
    return True


def _cycle(after: Mapping[str, Sequence[str]], ordered: Collection[str]) -> list[str]:
    """A cycle among the nodes that could not be ordered, dependencies before dependents."""
    # Each of them waits for another one, so following dependencies reaches a node twice.
    seen: dict[str, int] = {}
    name = next(name for name in after if name not in ordered)
    while name not in seen:
        seen[name] = len(seen)
        name = next(other for other in after[name] if other not in ordered)
    return list(seen)[seen[name] :][::-1]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a node that are not defaults, stored apart from its row. See ``CheckedNode``."""

    rule: Rule = Rule.ALL_SUCCESS
    on_failure: OnFailure | None = None
    policies: Mapping[str, OnFailure] | None = None
    queue_timeout_ms: int | None = None
    delay_ms: int = 0

    @property
    def is_ignored(self) -> bool:
        """Whether a failure of the node does not fail the flow."""
        return self.on_failure is OnFailure.IGNORE

    @classmethod
    def read(cls, text: str) -> Policy:
        """Read the stored form."""
        wire: dict[str, Any] = json.loads(text)
        on_failure = wire.get("on_failure")
        return cls(
            Rule(wire.get("rule", Rule.ALL_SUCCESS)),
            OnFailure(on_failure) if on_failure else None,
            {name: OnFailure(policy) for name, policy in wire.get("policies", {}).items()},
            wire.get("queue_timeout"),
            wire.get("delay", 0),
        )


ORDINARY: Final = Policy()
