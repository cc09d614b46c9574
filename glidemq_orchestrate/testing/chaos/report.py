"""The report of a campaign: the strikes on each step, and the steps that are not safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_SHOWN: Final = 20


class FindingKind(StrEnum):
    """The problems of a step, or of the flow."""

    EFFECT_REPEATED = "effect repeated"
    """Two attempts of a node had the same effect."""
    STALE_EFFECT = "effect of a stale attempt"
    """A stale attempt repeated an effect after the attempt that replaced it."""
    KEY_CHANGES = "key of effect changes"
    """An effect was repeated, with another key in each attempt."""
    EFFECT_MISSING = "effect missing"
    """A node completed, but no attempt called a function that it calls without strikes."""
    RESULT_DIFFERS = "result differs"
    """Two attempts of a node returned different results."""
    ENDS_DIFFERENTLY = "ends differently"
    """A node ended in another state than in the run without strikes."""
    CHECK_FAILED = "check failed"
    """The function ``check`` raised, or returned False."""
    WORKER_ENDED = "worker ended"
    """A worker process ended by itself, although no strike killed it."""
    NOT_ENDED = "flow not ended"
    """A run of the flow did not end in time."""
    PROMISE_BROKEN = "promise broken"
    """The library broke a promise, for example accepted a result twice: please report it with the seed."""


ADVICE: Final[Mapping[FindingKind, str]] = {
    FindingKind.EFFECT_REPEATED: "give the effect a key that is the same in every attempt, such as "
    "ctx.flow_id and ctx.node, and let the target refuse the second; then mark it with effect() "
    "where the target has accepted it as new",
    FindingKind.STALE_EFFECT: "check ctx.cancelled right before the effect, and let the target refuse the "
    "second of two effects with the same key",
    FindingKind.KEY_CHANGES: "derive the key from ctx.flow_id and ctx.node: a repeat cannot be recognized by "
    "a different key",
    FindingKind.EFFECT_MISSING: "record the effect after it, not before it: an attempt that is killed "
    "between the two has recorded an effect that did not happen",
    FindingKind.RESULT_DIFFERS: "derive times, ids and random numbers from ctx.data or ctx.flow_id, and sort "
    "unordered collections; if each attempt must have its own part, such as the folder that it wrote, "
    "allow that (may_differ, --may-differ)",
    FindingKind.ENDS_DIFFERENTLY: "remove or overwrite leftovers of an earlier attempt, instead of failing",
    FindingKind.CHECK_FAILED: "see the text of the check",
    FindingKind.WORKER_ENDED: "see workers.log in the folder of keep",
    FindingKind.NOT_ENDED: "look for a handler that waits for something that an earlier attempt holds, such "
    "as a lock; or use more runs, so that each has fewer strikes, or a longer timeout",
    FindingKind.PROMISE_BROKEN: "please report it, with the seed",
}


@dataclass(frozen=True, slots=True)
class ChaosFinding:
    """A problem.

    Attributes:
        step: The job name; empty for a problem of the flow.
        node: The first node with this problem.
        detail: The problem, without payloads and results.
        run: The run of the flow in which it was found first.
        count: The number of runs in which it was found.
    """

    kind: FindingKind
    step: str
    node: str
    detail: str
    run: int
    count: int = 1

    @property
    def advice(self) -> str:
        """How to fix it."""
        return ADVICE[self.kind]


@dataclass(frozen=True, slots=True)
class StepReport:
    """The strikes and problems of a step: all nodes with the same job name.

    Attributes:
        runs: How often its handler started.
        repeats: How many of these starts repeated a node in the same run.
        strikes: How many strikes hit it, by moment.
        effects: How many effects were marked.
        findings: Its problems.
    """

    step: str
    nodes: int
    runs: int
    repeats: int
    strikes: Mapping[str, int]
    effects: int
    findings: Sequence[FindingKind]

    @property
    def verdict(self) -> str:
        """``not safe``, ``not repeated`` (no strike repeated it), or ``safe``: repeated without a problem."""
        if self.findings:
            return "not safe"
        return "safe" if self.repeats else "not repeated"


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The report of a campaign.

    Attributes:
        flow: The name of the flow.
        seed: The seed of the strikes.
        runs: How many of the ``planned`` runs ended, without the run without strikes.
        strikes: How many strikes there were, by act.
        seconds: The duration of the campaign.
        steps: The report of each step, in the order of the flow.
        findings: The problems, by kind and step.
        notes: Limits of the report, such as a function that was never called.
    """

    flow: str
    seed: int
    runs: int
    planned: int
    strikes: Mapping[str, int]
    seconds: float
    steps: Sequence[StepReport]
    findings: Sequence[ChaosFinding]
    notes: Sequence[str] = ()

    @property
    def is_safe(self) -> bool:
        """Whether no problem was found. Some steps may not have been repeated: see ``StepReport.verdict``."""
        return not self.findings

    def assert_safe(self) -> None:
        """Do nothing if no problem was found.

        Raises:
            AssertionError: There are problems. The message has a line for each, and how to repeat it.
        """
        if self.findings:
            lines = [_line(finding) for finding in self.findings[:MAX_SHOWN]]
            more = [f"... and {len(self.findings) - MAX_SHOWN} more"] * (len(self.findings) > MAX_SHOWN)
            head = f"flow {self.flow} is not safe to repeat (seed {self.seed}):"
            raise AssertionError("\n  ".join([head, *lines, *more]))


def _line(finding: ChaosFinding) -> str:
    where = f"{finding.step}, node {finding.node}: " if finding.step else ""
    return f"{where}{finding.kind}: {finding.detail} (run {finding.run}); {finding.advice}"
