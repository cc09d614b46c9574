"""What came of a campaign: per step what was tried, and what is not safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_SHOWN: Final = 20


class FindingKind(StrEnum):
    """What can be wrong with a step, or with the flow."""

    EFFECT_REPEATED = "effect repeated"
    """Two attempts of a node had the same effect."""
    STALE_EFFECT = "effect of a stale attempt"
    """An attempt that had lost its lease repeated an effect after the attempt that replaced it."""
    KEY_CHANGES = "key of effect changes"
    """An effect was repeated, with another key in each attempt."""
    EFFECT_MISSING = "effect missing"
    """A node completed, and no attempt called a function that it calls without strikes."""
    RESULT_DIFFERS = "result differs"
    """Two attempts of a node returned different results."""
    ENDS_DIFFERENTLY = "ends differently"
    """A node has another end than in the run without strikes."""
    CHECK_FAILED = "check failed"
    """The function given as ``check`` raised."""
    WORKER_ENDED = "worker ended"
    """A worker process ended although nothing had killed it."""
    NOT_ENDED = "flow not ended"
    """A run of the flow had not ended in time."""
    PROMISE_BROKEN = "promise broken"
    """The library broke a promise, such as a result accepted twice: please report it with the seed."""


ADVICE: Final[Mapping[FindingKind, str]] = {
    FindingKind.EFFECT_REPEATED: "give the effect a key that is the same in every attempt, such as "
    "ctx.flow_id and ctx.node, and let the target refuse the second; then mark it with effect() "
    "where the target says that it is new",
    FindingKind.STALE_EFFECT: "look at ctx.cancelled just before the effect, and let the target refuse the "
    "second of two with the same key",
    FindingKind.KEY_CHANGES: "derive the key from ctx.flow_id and ctx.node: nothing can recognize the second "
    "of two with different keys",
    FindingKind.EFFECT_MISSING: "note that it was done after the effect, not before it: an attempt that "
    "is killed between the two has noted it and not done it",
    FindingKind.RESULT_DIFFERS: "derive times, ids and random numbers from ctx.data or ctx.flow_id, and sort "
    "what has no order; allow a part that each attempt has of its own, such as the folder it wrote "
    "(may_differ, --may-differ)",
    FindingKind.ENDS_DIFFERENTLY: "remove or overwrite what an earlier attempt has left, instead of failing",
    FindingKind.CHECK_FAILED: "see the text of the check",
    FindingKind.WORKER_ENDED: "see workers.log in the folder given by keep",
    FindingKind.NOT_ENDED: "look for a handler that waits for what an earlier attempt holds, such as a "
    "lock; or give more runs, so that each has fewer strikes, or a longer timeout",
    FindingKind.PROMISE_BROKEN: "please report it, with the seed",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not safe.

    Attributes:
        step: The job name; empty when it concerns the flow.
        node: A node for which it was seen first.
        detail: What was seen. It holds no payload and no result.
        run: The run of the flow in which it was seen first.
        count: In how many runs.
    """

    kind: FindingKind
    step: str
    node: str
    detail: str
    run: int
    count: int = 1

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.kind]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What was tried on one step: all nodes with one job name.

    Attributes:
        runs: How often its handler began, ``repeats`` of them for a node that had begun before in that run.
        strikes: How many strikes hit it, by moment.
        effects: How many effects were marked.
        findings: What is not safe.
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
        """``not safe``, ``not repeated`` (nothing was tried), or ``safe``: no harm was seen."""
        if self.findings:
            return "not safe"
        return "safe" if self.repeats else "not repeated"


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What came of a campaign.

    Attributes:
        flow: The name of the flow.
        seed: Gives the same strikes again.
        runs: How often the flow ran, not counting the run without strikes; of ``planned`` ones.
        strikes: How many strikes there were, by what they did.
        seconds: How long it took.
        steps: What was tried on each step, in the order of the flow.
        findings: What is not safe, by kind and step.
        notes: What to know to judge it, such as a function that was never called.
    """

    flow: str
    seed: int
    runs: int
    planned: int
    strikes: Mapping[str, int]
    seconds: float
    steps: Sequence[StepReport]
    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    @property
    def is_safe(self) -> bool:
        """Whether nothing was found. What was not tried is not known: see ``StepReport.verdict``."""
        return not self.findings

    def assert_safe(self) -> None:
        """Do nothing if nothing was found.

        Raises:
            AssertionError: With what was found, one line each, and how to see it again.
        """
        if self.findings:
            lines = [_line(finding) for finding in self.findings[:MAX_SHOWN]]
            more = [f"... and {len(self.findings) - MAX_SHOWN} more"] * (len(self.findings) > MAX_SHOWN)
            head = f"flow {self.flow} is not safe to repeat (seed {self.seed}):"
            raise AssertionError("\n  ".join([head, *lines, *more]))


def _line(finding: Finding) -> str:
    where = f"{finding.step}, node {finding.node}: " if finding.step else ""
    return f"{where}{finding.kind}: {finding.detail} (run {finding.run}); {finding.advice}"
