"""How many ended jobs are kept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.bounds import lasting, whole

Retention: TypeAlias = "bool | int | Keep"
"""``False``: kept until cleaned. ``True``: removed immediately. A number: a ``Keep`` with it. Or ``Keep``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How many ended jobs are kept, and for how long: one of the two or both.

    It concerns only the job that asks for it. ``count``: the newest so many of those that have ended in the
    same state and ask for the same count. ``age``: it is removed that long after its end, within some
    seconds, by any worker of the queue. A job that was added with a parent stays at least until that has
    ended; a node of a flow is kept as long as its flow.
    """

    count: int | None = None
    age: Duration | None = None

    def __post_init__(self) -> None:
        """Refuse a retention that keeps everything or nothing."""
        if self.count is None and self.age is None:
            raise InvalidJob("keep needs a count, an age or both")
        if self.count is not None:
            whole("keep.count", self.count, 1)
        if self.age is not None:
            object.__setattr__(self, "age", lasting("keep.age", self.age, min_=timedelta(seconds=1)))


def check_retention(name: str, value: object) -> None:
    if isinstance(value, bool | Keep):
        return
    if not isinstance(value, int) or not 1 <= value <= 2**53:
        raise InvalidJob(
            f"{name} must be True, False, a count of at least 1 or a Keep, got {described(value)}"
        )
