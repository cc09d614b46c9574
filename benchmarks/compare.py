"""The rows of the comparison, measured in turns: each round visits every row, and in it every contender.

The order of the contenders differs in each round. A figure is the median of the rounds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from benchmarks.rivals import OURS, Contender
from benchmarks.stage import Drained, Failed, Stage

CONCURRENCIES: Final = (1, 10, 50)
ADD: Final = 2_000
BULK: Final = 20_000
DRAIN: Final = 15_000
TRIPS: Final = 200
AT_LEAST: Final = 100  # whatever the scale: fewer end before a clock can tell
PER_SLOT: Final = 20  # jobs to drain at least: the jobs at the gate end as well, and are not counted
FLOWS: Final = (("fan-in", 1_000), ("fan-in", 10_000), ("columns", 1_001), ("layers", 1_000), ("chain", 100))
FLOW_CONCURRENCY: Final = 50

Numbers = dict[str, float]
Measure = Callable[[Stage, Contender], Numbers | None]


@dataclass(frozen=True)
class Row:
    """A measurement made for all contenders; it may give several figures."""

    name: str
    measure: Measure
    repeats: int = 1  # for measurements of less than a second


@dataclass
class Samples:
    """The measured numbers by figure and contender, one per round."""

    numbers: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, contender: Contender, numbers: Numbers) -> None:
        """Add the numbers of one measurement."""
        for figure, number in numbers.items():
            self.numbers[figure][contender.name].append(number)

    def medians(self) -> dict[str, dict[str, float]]:
        """The median of each figure."""
        return {
            figure: {name: statistics.median(found) for name, found in by_name.items()}
            for figure, by_name in self.numbers.items()
        }


def job_rows(scale: float) -> Iterator[Row]:
    """Adding, draining, and the time of a round trip."""

    def adding(how: str, count: int) -> Measure:
        def measure(stage: Stage, contender: Contender) -> Numbers:
            jobs = _part(count * contender.share, scale)
            return {how.replace("_", " ") + ", jobs/s": jobs / stage.added(contender, how, jobs)}

        return measure

    def draining(concurrency: int) -> Measure:
        def measure(stage: Stage, contender: Contender) -> Numbers:
            jobs = max(_part(DRAIN * contender.share, scale), PER_SLOT * concurrency)
            return drain_numbers(stage.drained(contender, concurrency, jobs), concurrency)

        return measure

    def waiting(stage: Stage, contender: Contender) -> Numbers:
        took = sorted(stage.round_trips(contender, _part(TRIPS, scale)))
        return {
            "add to finished p50, ms": 1_000 * took[len(took) // 2],
            "add to finished p99, ms": 1_000 * took[int(len(took) * 0.99)],
        }

    yield Row("add one by one", adding("add_one_by_one", ADD), repeats=3)
    yield Row("add in bulk", adding("add_in_bulk", BULK), repeats=3)
    for concurrency in CONCURRENCIES:
        yield Row(f"drain at {concurrency}", draining(concurrency))
    yield Row("add to finished", waiting)


def drain_numbers(found: Drained, concurrency: int) -> Numbers:
    """Jobs per second, and microseconds per job of each side."""
    at = f"at {concurrency}"
    numbers = {
        f"drain {at}, jobs/s": found.jobs / found.wall,
        f"server {at}, µs/job": found.server * 1e6 / found.jobs,
        f"worker {at}, µs/job": found.worker * 1e6 / found.jobs,
        f"wall {at}, µs/job": found.wall * 1e6 / found.jobs,
    }
    if found.handler is not None:
        numbers[f"handler {at}, µs/job"] = found.handler * 1e6 / found.jobs
    return numbers


def flow_rows(scale: float) -> Iterator[Row]:
    """Submitting flows and completing them."""

    def flowing(shape: str, size: int) -> Measure:
        def measure(stage: Stage, contender: Contender) -> Numbers | None:
            found = stage.flow(contender, shape, size, FLOW_CONCURRENCY) if contender.flows else None
            if found is None:
                return None
            name = f"{shape} of {size:,}"
            return {f"submit {name}, ms": found[0] * 1_000, f"complete {name}, ms": found[1] * 1_000}

        return measure

    sizes = ((shape, size if scale >= 1 else max(int(size * scale), min(size, 101))) for shape, size in FLOWS)
    for shape, nodes in dict.fromkeys(sizes):
        yield Row(f"{shape} {nodes}", flowing(shape, nodes))


def measure_all(stage: Stage, rows: list[Row], rounds: int, console: Console) -> dict[str, dict[str, float]]:
    """Measure all rows in turns; returns figures by name and contender."""
    samples = Samples()
    for turn in range(rounds):
        at = turn % len(stage.contenders)
        order = stage.contenders[at:] + stage.contenders[:at]
        for row in rows:
            for contender in order:
                console.log(f"round {turn + 1}/{rounds}: {row.name}: {contender.name}", style="dim")
                try:
                    for _ in range(row.repeats):
                        samples.add(contender, row.measure(stage, contender) or {})
                except Failed as exc:
                    if contender is OURS:
                        raise
                    console.print(str(exc), style="red", markup=False)
    return samples.medians()


def _part(count: float, scale: float) -> int:
    return max(int(count * scale), AT_LEAST)


def results(figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The figures for ``--json``."""
    return {
        figure: {name: round(value, 3) for name, value in found.items()} for figure, found in figures.items()
    }
