"""Reports the ends of elements of a slice while the next one still runs.

Otherwise a long element would keep the ends of those before it from the server, and those after it from other
workers. It stays alone in its slice, under the same lease; see ``kept_elements.lua``. Its own end is not
reported before the server has accepted or refused the early report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.attempts.exchange import KEPT, Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.worker.handlers.middleware import Execution
from glidemq_orchestrate.worker.written_messages import attempt_key

MAX_SECONDS: Final = 0.5
"""How long a slice may run before what has ended is reported."""

Element: TypeAlias = tuple[int, Any, int]
"""Position, item, and how many attempts have failed."""

SendEarly: TypeAlias = Callable[[Attempt, Outcome, float], bool]


@dataclass(slots=True)
class Turns:
    """The elements of a slice that run in turn.

    Attributes:
        execution: That of the slice.
        elements: All of them.
        send: Sends an early report of an attempt, with how long it has run; returns False if it must wait.
        lines: Of those that have ended and are not reported.
        ended: How many have ended.
        began: When the current one began, by the clock of the loop.
        is_early: The current one is the last: it was kept, and the others were reported or given back.
    """

    execution: Execution
    elements: Sequence[Element]
    send: SendEarly
    lines: list[str] = field(default_factory=list)
    ended: int = 0
    began: float = 0.0
    is_early: bool = False
    _timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin. One timer for all of them; none for a single element."""
        self.began = loop.time()
        if len(self.elements) > 1:
            self._timer = loop.call_later(MAX_SECONDS, self._look, loop)

    def stop(self) -> None:
        """Nothing is reported early any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """The slice has run for long: report what has ended, and keep the current element."""
        (attempt,), execution = self.execution.attempts, self.execution
        if execution.stopped or attempt.slice is None:
            return
        early = copy(attempt)
        early.element, early.seconds = None, self.began - execution.started
        text, first = "\n".join([*self.lines, KEPT]), attempt.slice.indexes[0]
        report = Outcome(early, Kind.ELEMENTS, text, first=first + 1)
        if not self.send(attempt, report, loop.time() - execution.started):
            self._timer = loop.call_later(MAX_SECONDS, self._look, loop)
            return
        attempt.slice = _only(attempt.slice, self.ended)
        execution.started, self.lines, self.is_early = self.began, [], True


def _only(slice_: Slice, at: int) -> Slice:
    """A slice of which one element is left."""
    items = slice_.items.split("\n")[at] if slice_.items else ""
    indexes, tried = slice_.indexes[at : at + 1], slice_.tried[at : at + 1]
    return replace(slice_, indexes=indexes, tried=tried, items=items, is_kept=True)


@dataclass(slots=True)
class _Open:
    """An early report without a verdict.

    Attributes:
        attempt: It goes on.
        reported: A copy of it, with the elements that have ended.
        end: How the attempt has ended, if it has.
    """

    attempt: Attempt
    reported: Attempt
    end: Outcome | None = None


class EarlyReports:
    """The early reports of a worker.

    Args:
        report: Reports an outcome to the server.
        cancel: Stops the handler of an attempt whose lease is lost.
    """

    def __init__(self, report: Callable[[Outcome], None], cancel: Callable[[Attempt], None]) -> None:
        self._report, self._cancel = report, cancel
        self._open: dict[tuple[str, str], _Open] = {}

    def begin(self, attempt: Attempt, outcome: Outcome) -> None:
        """Report elements that have ended; the attempt goes on."""
        self._open[attempt_key(attempt)] = _Open(attempt, outcome.attempt)
        self._report(outcome)

    def end(self, outcome: Outcome) -> None:
        """Report how an attempt has ended, once the verdict on its early report is known."""
        if self._open and (known := self._open.get(attempt_key(outcome.attempt))):
            known.end = outcome
        else:
            self._report(outcome)

    def judged(self, outcome: Outcome, verdict: str) -> bool:
        """Take the verdict on an outcome; returns whether it refuses an early report and ends an attempt."""
        key = attempt_key(outcome.attempt)
        known = self._open.get(key)
        if known is None or known.reported is not outcome.attempt:
            return False
        del self._open[key]
        is_refused = verdict.startswith(("stale ", "error "))
        if is_refused or outcome.kind is not Kind.ELEMENTS:
            self._cancel(known.attempt)
        if known.end is not None:
            self._report(known.end)
        return is_refused

    def unreported(self, queue: str) -> list[Attempt]:
        """The ended attempts of a queue whose end waits for a verdict: they need their leases."""
        return [one.attempt for one in self._open.values() if one.end and one.attempt.queue == queue]
