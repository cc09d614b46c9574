"""Runs histories one after the other and reports those that break a promise."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.properties.simulation.history import Result, run_history
from tests.properties.simulation.plan import Path
from tests.properties.simulation.store import Store


@dataclass(slots=True)
class Report:
    """How a search went.

    Attributes:
        histories, calls: How many there were.
        simulated_ms: How much time passed in them.
        has_just_failed: The last history did.
        seconds: How long it took.
        failures: The histories that broke a promise.
    """

    histories: int = 0
    calls: int = 0
    simulated_ms: int = 0
    seconds: float = 0.0
    has_just_failed: bool = False
    failures: list[Result] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        """Histories per minute."""
        return self.histories / self.seconds * 60 if self.seconds else 0.0


def search(
    store: Store,
    seed: int,
    paths: Sequence[Path],
    *,
    most: int,
    stop_at: int = 1,
    after_each: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run histories of consecutive seeds, on each of the paths in turn, until so many have failed."""
    report, began = Report(), time.monotonic()
    for number, path in itertools.islice(_turns(seed, paths), most):
        result = run_history(store, str(number), path)
        report.histories += 1
        report.calls += result.steps
        report.simulated_ms += result.ms
        report.seconds = time.monotonic() - began
        report.has_just_failed = bool(result.problems)
        if result.problems:
            report.failures.append(result)
        after_each(report)
        if len(report.failures) >= stop_at:
            break
    return report


def _turns(seed: int, paths: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    for number in itertools.count(seed):
        for path in paths:
            yield number, path
