"""When a node runs: trigger rules, and what the failure of a dependency means. Independent of the server.

The server decides; see ``rules.lua``. ``verdict`` decides for flows on the portable path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Self, TypeAlias

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.foundation.names import described

UPSTREAM: Final = "upstream "


class OnFailure(StrEnum):
    """What the failure of a node means to a node that waits for it.

    The dependent's rule then applies to what the failure counts as. The failure itself still fails the flow,
    with all but ``IGNORE`` on the node itself.
    """

    FAIL = "fail"
    """It counts as a failure."""
    IGNORE = "ignore"
    """It counts as completed. Set on the node itself, its failure does not fail the flow either."""
    SKIP = "skip"
    """It counts as skipped; the flow fails."""
    ALL_DONE = "all_done"
    """It counts as completed, and so does being skipped: the dependent runs in any case; the flow fails."""


class Rule(StrEnum):
    """When a node with dependencies runs. Names and meanings are those of Airflow's trigger rules.

    A node ends as failed or skipped as soon as its rule can no longer be met. A node without dependencies
    runs immediately, whatever its rule.
    """

    ALL_SUCCESS = "all_success"
    """All have completed. Fails with the first failure, is skipped with the first skipped one."""
    ALL_FAILED = "all_failed"
    """All have failed; else it is skipped."""
    ALL_DONE = "all_done"
    """All have ended, in whatever state."""
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    """All have ended, none was skipped (else it is skipped) and one has completed (else it fails)."""
    ALL_SKIPPED = "all_skipped"
    """All were skipped; else it is skipped."""
    ONE_SUCCESS = "one_success"
    """One has completed; does not wait for the others. When none has, it fails, or is skipped if all were."""
    ONE_FAILED = "one_failed"
    """One has failed; does not wait for the others. When none has, it is skipped."""
    ONE_DONE = "one_done"
    """One has completed or failed; does not wait for the others. When all were skipped, it is skipped."""
    NONE_FAILED = "none_failed"
    """All have completed or were skipped. Fails with the first failure."""
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    """As ``none_failed``, and one has completed; skipped when all were."""
    NONE_SKIPPED = "none_skipped"
    """All have completed or failed. Skipped with the first skipped one."""
    ALWAYS = "always"
    """Immediately: dependencies only select which results it gets, if they have completed by then."""


EAGER: Final = (Rule.ONE_SUCCESS, Rule.ONE_FAILED, Rule.ONE_DONE, Rule.ALWAYS)
"""The rules that let a node run before all its dependencies have ended."""


class Dependency(str):
    """The name of a node, with what its failure means to the node that waits for it.

    Usable wherever the name is: ``after=["load", Dependency("audit", on_failure="ignore")]``.

    Args:
        name: The node to wait for.
        on_failure: When left out, the ``on_failure`` of that node applies.

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
        """As written in code."""
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
    """The fate of a node: ``run``, ``failed`` or ``skipped``; None while it is undecided.

    It depends on how many of its ``total`` dependencies count as completed, failed and skipped so far.
    """
    return _VERDICT[rule](completed, failed, skipped, total) if total else "run"


_POLICIES: Final[dict[str, OnFailure]] = {one.value: one for one in OnFailure}
_RULES: Final[dict[str, Rule]] = {one.value: one for one in Rule}


def read_policy(value: str, *, where: str) -> OnFailure:
    """The policy of this name.

    Raises:
        InvalidFlow: There is no such policy.
    """
    if isinstance(value, str) and (found := _POLICIES.get(value)) is not None:
        return found
    raise InvalidFlow(f"{where}: on_failure {described(value)} is unknown; use {_listed(OnFailure)}")


def read_rule(value: str, *, where: str) -> Rule:
    """The rule of this name.

    Raises:
        InvalidFlow: There is no such rule.
    """
    if isinstance(value, str) and (found := _RULES.get(value)) is not None:
        return found
    raise InvalidFlow(f"{where}: rule {described(value)} is unknown; use {_listed(Rule)}")


def _listed(names: type[StrEnum]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"
