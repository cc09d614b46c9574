"""Conditions on a queue. No server, no Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from glidemq_orchestrate import JobState
    from glidemq_orchestrate.clients import WorkerInfo

Condition = Literal["empty", "idle", "paused", "resumed", "served"]
WAITING: Final = ("waiting", "prioritized")
COUNTED: Final = (*WAITING, "delayed", "active", "suspended", "completed", "failed")
_LEFT: Final = (*WAITING, "delayed", "active", "suspended")


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as it was read.

    ``workers``: how many workers are alive. ``handlers``: the jobs that they can run; None if a worker does
    not list its handlers, as Node workers do not.
    """

    counts: Mapping[str, int]
    is_paused: bool
    workers: int
    handlers: frozenset[str] | None

    @classmethod
    def of(cls, counts: Mapping[JobState, int], is_paused: bool, workers: Sequence[WorkerInfo]) -> QueueState:  # noqa: FBT001
        """The state from the values that a queue client reads."""
        lists = [worker.handlers for worker in workers if worker.runs_jobs]
        handlers = {name for names in lists for name in names or ()}
        known = None if None in lists else frozenset(handlers)
        return cls({state.value: count for state, count in counts.items()}, is_paused, len(lists), known)

    @property
    def is_unknown(self) -> bool:
        """Whether there is no sign that a queue of this name was ever used."""
        return not (any(self.counts.values()) or self.is_paused or self.workers)

    def __str__(self) -> str:
        """For logs and errors."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) or "no jobs"
        return f"{counts}; {self.workers or 'no'} live workers{'; paused' if self.is_paused else ''}"


@dataclass(frozen=True, slots=True)
class QueueCondition:
    """A condition on a queue: a named ``condition``, or how many jobs are in certain states.

    Attributes:
        condition: ``empty`` (no job or element of an array waits for a worker), ``idle`` (empty, and none is
            active, delayed or suspended), ``paused``, ``resumed`` (not paused), ``served`` (live workers have
            handlers for ``jobs``).
        at_least, at_most: Bounds for the total number of jobs in ``states``; elements count like jobs.
        states: Which states are counted.
        jobs: Job names, for ``served``.

    Raises:
        ValueError, TypeError: The condition is empty, or contradicts itself.
    """

    condition: str | None = None
    at_least: int | None = None
    at_most: int | None = None
    states: tuple[str, ...] = WAITING
    jobs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if (self.condition is not None) == ((self.at_least, self.at_most) != (None, None)):
            raise ValueError("give either a condition, or at_least or at_most or both")
        if self.condition is not None:
            self._check_condition(self.condition)
        else:
            self._check_bounds()
        if self.jobs and self.condition != "served":
            raise ValueError('jobs is for condition="served"')

    def _check_condition(self, condition: str) -> None:
        if condition not in get_args(Condition):
            known = ", ".join(get_args(Condition))
            raise ValueError(f"condition must be one of {known}, got {condition!r}")
        if self.states != WAITING:
            raise ValueError("states is for at_least and at_most")

    def _check_bounds(self) -> None:
        for name, bound in (("at_least", self.at_least), ("at_most", self.at_most)):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise TypeError(f"{name} must be a whole number, got {bound!r}")
            if bound is not None and bound < 0:
                raise ValueError(f"{name} must not be negative, got {bound}")
        least, most = self.at_least or 0, self.at_most
        if most is None and least == 0:
            raise ValueError("at_least=0 is always true")
        if most is not None and least > most:
            raise ValueError(f"at_least {least} is more than at_most {most}: it is never true")
        if not self.states or set(self.states) - set(COUNTED):
            given = ", ".join(self.states) or "none"
            raise ValueError(f"states must be of {', '.join(COUNTED)}, got {given}")

    def is_met(self, state: QueueState) -> bool:
        """Whether the queue meets the condition."""
        match self.condition:
            case "empty":
                return not _count(state, WAITING)
            case "idle":
                return not _count(state, _LEFT)
            case "paused" | "resumed":
                return state.is_paused is (self.condition == "paused")
            case "served":
                has_all = state.handlers is None or set(self.jobs) <= state.handlers
                return state.workers > 0 and has_all
        count = _count(state, self.states)
        return (self.at_least is None or count >= self.at_least) and (
            self.at_most is None or count <= self.at_most
        )

    def __str__(self) -> str:
        """For logs and errors."""
        if self.condition is not None:
            return f"served with {', '.join(self.jobs)}" if self.jobs else self.condition
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        counts = " and ".join(f"{text} {bound}" for text, bound in bounds if bound is not None)
        return f"{counts} {' or '.join(self.states)}"


def _count(state: QueueState, states: Sequence[str]) -> int:
    return sum(state.counts.get(name, 0) for name in states)
