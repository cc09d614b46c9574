"""Which ends the nodes of a flow may have: the rules, written down apart from the code that decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypedDict

from tests.chaos.plan import Step
from tests.rule_oracle import decisions

Allowed = dict[str, frozenset[str]]


class Excuses(TypedDict):
    """Why nodes may end otherwise than planned."""

    struck: Collection[str]
    unfenced: Mapping[str, frozenset[str]]
    by_hand: Mapping[str, bool]


def ends(
    steps: Iterable[Step],
    *,
    before: Mapping[str, frozenset[str]] | None = None,
    struck: Collection[str] = (),
    unfenced: Mapping[str, frozenset[str]] | None = None,
    by_hand: Mapping[str, bool] | None = None,
) -> Allowed:
    """The ends that each node may have; several where the order of events decides.

    Args:
        steps: Dependencies before dependents.
        before: The ends before a retry, of nodes that may keep their results: what has completed keeps it,
            the rest runs again, cured.
        struck: Nodes that may have used up their attempts because their processes were killed.
        unfenced: Further ends of nodes that Node workers have ended when they were not theirs.
        by_hand: Nodes that somebody has skipped, and whether that is certain.
    """
    known = {step.name: step for step in steps}
    allowed: Allowed = {}
    for step in known.values():
        again = decisions(step, allowed, known)
        found = frozenset().union(*(_end(step, verdict, is_cured=before is not None) for verdict in again))
        if step.name in struck and "run" in again:
            found |= {"failed"}
        if (is_certain := (by_hand or {}).get(step.name)) is not None:
            found = frozenset({"skipped"}) if is_certain else found | {"skipped"}
        found |= (unfenced or {}).get(step.name, frozenset())
        if before is not None and "completed" in (was := before.get(step.name, frozenset())):
            found = frozenset({"completed"}) if was == {"completed"} else found | {"completed"}
        allowed[step.name] = found
    return allowed


def _end(step: Step, verdict: str, *, is_cured: bool) -> set[str]:
    if verdict != "run":
        return {verdict}
    own = {"complete": "completed", "fail": "failed", "refuse": "failed", "skip": "skipped"}
    return {own.get(step.ends, "completed" if is_cured else "failed")}
