"""Reads the logs of jobs. A long log keeps its last lines; ``gmo:cut`` counts the removed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.jobs import calls as job_calls
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.wire.call import Call, Op, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

MAX_ROUNDS: Final = 5
Send = Callable[[Sequence[Call[Any]]], Op[list[Any]]]


@dataclass(frozen=True, slots=True)
class LogRange:
    """Up to ``limit`` lines of a job from ``offset`` on; an offset of -20 means the last 20."""

    keys: QueueKeys
    job_id: str
    offset: int
    limit: int

    def calls(self, cut: int) -> list[Call[Any]]:
        """The calls that read the lines, given that ``cut`` lines were removed."""
        start = max(self.offset - cut, 0) if self.offset >= 0 else self.offset
        last = start + self.limit - 1
        first, last = (start, min(last, -1) if start < 0 else last) if self.limit else (1, 0)
        return [
            job_calls.log_lines(self.keys, self.job_id, first, last),
            job_calls.log_length(self.keys, self.job_id),
            job_hash.get(self.keys, self.job_id, "gmo:cut", number),
        ]

    def read(self, lines: list[str], length: int, cut: int) -> JobLogs:
        """The lines, from the replies to these calls."""
        first = max(self.offset, cut) if self.offset >= 0 else cut + max(length + self.offset, 0)
        return JobLogs(lines, cut + length, first)


def read(ranges: Sequence[LogRange], send: Send = ask_all) -> Op[list[JobLogs]]:
    """Read each range in one round trip, or in two if lines were removed."""
    found: dict[int, JobLogs] = {}
    cuts, left = [0] * len(ranges), list(range(len(ranges)))
    for _ in range(MAX_ROUNDS):  # lines may be removed between the trips
        replies = yield from send([call for at in left for call in ranges[at].calls(cuts[at])])
        asked, left = left, []
        for at, lines, length, cut in zip(asked, replies[::3], replies[1::3], replies[2::3], strict=True):
            found[at] = ranges[at].read(lines, length, cut)
            if ranges[at].offset > 0 and cut != cuts[at]:
                cuts[at] = cut
                left.append(at)
        if not left:
            break
    return [found[at] for at in range(len(ranges))]
