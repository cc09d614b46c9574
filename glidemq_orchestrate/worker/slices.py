"""Runs slices of arrays: the handler for each element in turn, or once for all of them if it takes batches.

A slice takes one place of the worker, like a job. It ends after its last element, or earlier: after half a
second, so that others can run the rest, with large results, and when the worker stops. One report then has
the outcomes of the elements that ran; the server gives the others back. If an element still runs after half a
second, that report is sent early, and the slice goes on with this element alone; see ``early_reports``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import zip_longest
from typing import Any, Final

from glidemq_orchestrate.attempts.exchange import APPENDED, KEPT, Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.wire.codec import decode
from glidemq_orchestrate.worker.early_reports import MAX_SECONDS, Element, SendEarly, Turns
from glidemq_orchestrate.worker.executor import Executor, refuse
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Execution
from glidemq_orchestrate.worker.handlers.registered import Registered
from glidemq_orchestrate.worker.job_slots import JobSlots

MAX_ELEMENTS: Final = 100
SLICE_SECONDS: Final = 0.1
"""How long a slice should take; it decides how many elements the next ones have."""
MAX_CHARACTERS: Final = 1_000_000
MAX_LINES: Final = 1_000
"""Of the results and added items of a slice: it ends when it has more."""
FIRST_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 0.5
YIELD_SECONDS: Final = 0.005
"""How long async handlers that await nothing may keep the loop."""
ENDED: Final = "ended"
BY_HAND: Final = "stale it was ended by hand"
"""The verdict on an element that a user has ended while it ran."""
LOST: Final = "its worker was lost while it may have run, and it must not run again"


class SliceSizes:
    """How many elements a slice has, by job name: as many as run in ``SLICE_SECONDS``, at first one.

    Args:
        handlers: Batch handlers get as many as they take. Of a handler that must run at most once, a slice
            has one element: after the loss of a worker it is known which one had started.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._sizes = {"": 1, **handlers.slice_limits}
        self._seconds: dict[str, float] = {}
        self._fixed = frozenset(self._sizes)
        self._text = json.dumps(self._sizes)
        self._pauses: dict[str, tuple[float, float]] = {}
        """By queue from which slices are returned: how long none is leased, and until when."""

    def of(self, queue: str) -> str:
        """The sizes as JSON, for the next call; empty if it leases no slices."""
        return "" if time.monotonic() < self._pauses.get(queue, (0.0, 0.0))[1] else self._text

    def returned(self, queue: str) -> float:
        """Lease no slices for a moment, as the last ones had no handler here; returns for how long.

        Otherwise this worker would lease and return them without end while others run them. The moment
        doubles until it gets a slice that it can run. 0: it has begun already.
        """
        pause, until = self._pauses.get(queue, (0.0, 0.0))
        if (now := time.monotonic()) < until:
            return 0.0
        pause = min(pause * 2, MAX_PAUSE_SECONDS) or FIRST_PAUSE_SECONDS
        self._pauses[queue] = pause, now + pause
        return pause

    def ran(self, outcome: Outcome, seconds: float) -> None:
        """Note how long the elements of a slice took.

        A kept one counts in the early report, with what it took until then: it holds no other up for longer.
        """
        slice_ = outcome.attempt.slice
        if outcome.kind is not Kind.ELEMENTS or (slice_ is not None and slice_.is_kept):
            return
        name = outcome.attempt.name
        self._pauses.pop(outcome.attempt.queue, None)
        if name in self._fixed:
            return
        each = seconds / (outcome.elements + outcome.is_early)
        mean = self._seconds.get(name, each)
        self._seconds[name] = mean = mean + (each - mean) / 4
        size = max(min(int(SLICE_SECONDS / max(mean, 1e-6)), MAX_ELEMENTS), 1)
        if size != self._sizes.get(name, 1):
            self._sizes[name] = size
            self._text = json.dumps(self._sizes)


async def execute_slice(
    executor: Executor,
    execution: Execution,
    slice_: Slice,
    slots: JobSlots,
    send_early: SendEarly,
) -> Sequence[Outcome | None]:
    """Run a slice; returns its outcome, or None if its lease is lost.

    ``send_early``: see ``Turns``.

    Raises:
        asyncio.CancelledError: The worker is ending, and gives the slice back.
        ThreadsUnavailable: The interpreter is shutting down.
    """
    (attempt,) = execution.attempts
    registered = executor.handlers.get(attempt.name)
    if registered is None or attempt.unreadable:
        return await executor.execute(execution)
    if registered.at_most_once and attempt.suspect:
        return (refuse(attempt, LOST),)
    try:
        items = read_items(slice_)
        executor.contexts.make(attempt)  # if this can be read, so can the context of each element
    except GlideMQError as exc:
        return (refuse(attempt, f"{type(exc).__name__}: {exc}"),)
    elements = list(zip(slice_.indexes, items, slice_.tried, strict=True))
    if registered.batch_size:
        return await _run_together(executor, execution, registered, elements)
    turns = Turns(execution, elements, send_early)
    turns.start(asyncio.get_running_loop())
    try:
        return await _run_in_turn(executor, registered, turns, slots)
    finally:
        turns.stop()


def read_items(slice_: Slice) -> Sequence[Any]:
    """The items of the elements.

    Raises:
        DecodeError: The stored items are not JSON.
    """
    if not slice_.items:
        return [slice_.start + index * slice_.step for index in slice_.indexes]
    text = f"[{slice_.items.replace(chr(10), ',')}]"
    items: Any = decode(text, where=f"items of array {slice_.array_id}")
    return list(items)


async def _run_together(
    executor: Executor, execution: Execution, registered: Registered, elements: Sequence[Element]
) -> Sequence[Outcome | None]:
    """Run the elements with one call of a batch handler."""
    (attempt,) = execution.attempts
    attempt.attempts_made = max(tried for _, _, tried in elements)
    execution.contexts = [
        executor.contexts.of_element(attempt, index, item, tried) for index, item, tried in elements
    ]
    contexts = execution.contexts
    outcomes = await executor.call(execution, registered, [attempt] * len(elements))
    return _ended(attempt, outcomes, contexts)


async def _run_in_turn(
    executor: Executor, registered: Registered, turns: Turns, slots: JobSlots
) -> Sequence[Outcome | None]:
    """Run the elements one after the other, until something else should run."""
    execution, time = turns.execution, asyncio.get_running_loop().time
    (attempt,) = execution.attempts
    began = paused = turns.began
    size = 0
    for index, item, tried in turns.elements:
        attempt.attempts_made, attempt.element = tried, index
        execution.contexts = (context := executor.contexts.of_element(attempt, index, item, tried),)
        (outcome,) = await executor.call(execution, registered, execution.attempts)
        if outcome is None or execution.stopped:
            return (None,)
        turns.lines += (more := lines_of(outcome, context))
        turns.ended, turns.began = turns.ended + 1, (now := time())
        if turns.is_early:
            break
        size += sum(map(len, more))
        is_long = size > MAX_CHARACTERS or len(turns.lines) > MAX_LINES or now - began > MAX_SECONDS
        if is_long or slots.stopping or context.cancelled.is_set():
            break
        if now - paused > YIELD_SECONDS:
            await asyncio.sleep(0)
            paused = time()
    attempt.element = None
    return (lines_outcome(attempt, turns.lines),)


def lines_outcome(attempt: Attempt, lines: Sequence[str]) -> Outcome:
    """The outcome of a slice with these lines."""
    kept = attempt.slice.indexes[0] + 1 if attempt.slice and attempt.slice.is_kept else 0
    return Outcome(attempt, Kind.ELEMENTS, "\n".join(lines), first=kept)


def for_kept(outcome: Outcome) -> Outcome:
    """The outcome of an attempt; of a kept element, it says of which."""
    slice_ = outcome.attempt.slice
    if outcome.kind is Kind.FAIL and slice_ is not None and slice_.is_kept:
        return lines_outcome(outcome.attempt, [line_of(outcome)])
    return outcome


def _ended(
    attempt: Attempt, outcomes: Sequence[Outcome | None], contexts: Sequence[Context]
) -> Sequence[Outcome | None]:
    lines: list[str] = []
    for outcome, context in zip(outcomes, contexts, strict=True):
        if outcome is None:
            return (None,)
        lines += lines_of(outcome, context)
    return (Outcome(attempt, Kind.ELEMENTS, "\n".join(lines)),)


def lines_of(outcome: Outcome, context: Context) -> list[str]:
    """The line for the outcome of a job, and those of the items that it adds to arrays."""
    lines = [line_of(outcome)]
    for name, items in context.flow.appended.items() if outcome.kind is Kind.DONE else ():
        lines += [f"t{name}"] if name else []
        lines += [f"{APPENDED}{item}" for item in items]
    return lines


def with_added(execution: Execution, outcomes: Sequence[Outcome | None]) -> Sequence[Outcome | None]:
    """The outcomes of jobs; of those that add items to arrays, with these items."""
    if not any(context.flow.appended for context in execution.contexts):
        return outcomes
    pairs = zip_longest(outcomes, execution.contexts)
    return [
        Outcome(outcome.attempt, Kind.ELEMENTS, "\n".join(lines))
        if outcome and context and len(lines := lines_of(outcome, context)) > 1
        else outcome
        for outcome, context in pairs
    ]


def line_of(outcome: Outcome) -> str:
    """The line for the outcome of an element; ``slices.lua`` reads it."""
    if outcome.kind is Kind.DONE:
        return "d" if outcome.text == "null" else f"d{outcome.text}"
    reason = " ".join(outcome.text.split())
    if outcome.kind is Kind.FAIL:
        return f"f{outcome.first} {outcome.second} {reason}"
    if outcome.kind is Kind.SKIP:
        return f"s{reason}"
    if outcome.kind is Kind.LATER:
        return f"l{outcome.first}"
    return f"f0 0 an element of an array cannot wait for {_WAITS.get(outcome.kind, 'that')}"


_WAITS: Final[Mapping[Kind, str]] = {Kind.CHILDREN: "child jobs", Kind.SUSPEND: "a signal"}


def is_of_elements(outcome: Outcome) -> bool:
    """Whether an outcome has a line for each element that it ends, or ends all of a slice in the same way."""
    is_slice = outcome.attempt.slice is not None
    return outcome.kind is Kind.ELEMENTS or (is_slice and outcome.kind is Kind.FAIL)


def ends_of(outcome: Outcome, verdict: str) -> Iterator[tuple[Outcome, str]]:
    """Outcome and verdict of each element that ran, in the form of a node of its own."""
    slice_ = outcome.attempt.slice
    if slice_ is None:
        yield _read_line(outcome.attempt, outcome.text.split("\n", 1)[0]), verdict
        return
    has_lines = outcome.kind is Kind.ELEMENTS
    text = [line for line in outcome.text.split("\n") if not line.startswith((APPENDED, KEPT))]
    lines = text if has_lines else [line_of(outcome)] * len(slice_.indexes)
    verdicts = verdict.split("\n") if "\n" in verdict else [verdict] * len(lines)
    verdicts = [BY_HAND if one == ENDED else one for one in verdicts]
    for index, tried, line, one in zip(slice_.indexes, slice_.tried, lines, verdicts, strict=False):
        attempt = copy(outcome.attempt)
        attempt.slice, attempt.element, attempt.attempts_made = None, index, tried
        attempt.job_id, attempt.seconds = slice_.array_id, outcome.attempt.seconds / len(lines)
        yield _read_line(attempt, line), one


def _read_line(attempt: Attempt, line: str) -> Outcome:
    kind, text = _KINDS[line[:1]], line[1:]
    if kind is not Kind.FAIL:
        return Outcome(attempt, kind, text)
    allowed, backoff, reason = text.split(" ", 2)
    return Outcome(attempt, kind, reason, first=int(allowed), second=int(backoff))


_KINDS: Final[Mapping[str, Kind]] = {"d": Kind.DONE, "s": Kind.SKIP, "l": Kind.LATER, "f": Kind.FAIL}
