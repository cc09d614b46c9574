"""The rivals of the benchmarks, and the tables of the comparison."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from rich.console import Console

from benchmarks.__main__ import ALL, chosen
from benchmarks.compare import job_rows
from benchmarks.report import jobs_table, ratios_table
from benchmarks.rivals import RIVALS, ROOT, Contender
from benchmarks.sizes import longest_call
from benchmarks.stage import Drained

FIGURES = {
    "add one by one, jobs/s": {"glidemq": 3_000.0, "slow": 1_000.0, "fast": 4_000.0},
    "drain at 1, jobs/s": {"glidemq": 900.0, "slow": 300.0},
    "add to finished p50, ms": {"glidemq": 2.0, "slow": 6.0, "fast": 1.0},
    "server at 1, µs/job": {"glidemq": 50.0},
}
NAMES = ["glidemq", "slow", "fast"]


def rows(table: Any) -> list[list[str]]:
    """The lines of a printed table, in columns."""
    out = Console(width=120)
    with out.capture() as printed:
        out.print(table)
    return [re.split(r"\s{2,}", line.strip()) for line in printed.get().splitlines()]


def test_each_contender_has_a_row_and_a_dash_where_it_was_not_measured() -> None:
    assert rows(jobs_table(FIGURES, NAMES)) == [
        ["Jobs (medians)"],
        ["add one by one", "drain at 1", "add to finished p50"],
        ["jobs/s", "jobs/s", "ms"],
        ["glidemq", "3,000", "900", "2.00"],
        ["slow", "1,000", "300", "6.00"],
        ["fast", "4,000", "-", "1.00"],
    ]


def test_ratios_above_one_mean_that_ours_is_better_also_in_milliseconds() -> None:
    assert rows(ratios_table(FIGURES, NAMES))[2:] == [
        ["slow", "3.0x", "3.0x", "3.0x"],
        ["fast", "0.8x", "-", "0.5x"],
        ["the best of them", "0.8x", "3.0x", "0.5x"],
    ]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_a_rival_is_pinned_and_has_a_program(rival: Contender) -> None:
    assert all(re.search(r"(==|.@)\d+\.\d+\.\d+$", pin) for pin in rival.pins), rival.pins
    program = rival.command[-1].replace("benchmarks.contenders.", "")
    assert (ROOT / "benchmarks/contenders" / f"{program}.py").exists() or program.endswith(".mjs")
    assert rival.settings


def test_rivals_are_chosen_by_name() -> None:
    assert [rival.name for rival in chosen("rq,bullmq")] == ["bullmq", "rq"]
    assert chosen("") == []
    assert chosen(ALL) == list(RIVALS)
    with pytest.raises(typer.BadParameter, match="no rival is named celry"):
        chosen("celry,rq")


class CountedStage:
    """A stage that only notes how many jobs it was asked for."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def added(self, _: Contender, how: str, count: int) -> float:
        self.counts[how] = count
        return 1.0

    def drained(self, _: Contender, concurrency: int, count: int) -> Drained:
        self.counts[f"drain at {concurrency}"] = count
        return Drained(count, 1.0, 1.0, 1.0)

    def round_trips(self, _: Contender, count: int) -> list[float]:
        self.counts["trips"] = count
        return [1.0] * count


def counts_of(share: float, scale: float) -> dict[str, int]:
    """How many jobs each row asks for."""
    stage: Any = CountedStage()
    for row in job_rows(scale):
        row.measure(stage, Contender("one", "", share=share))
    counts: dict[str, int] = stage.counts
    return counts


def test_a_slow_library_at_a_small_scale_still_has_enough_jobs_to_measure() -> None:
    counts = counts_of(share=0.05, scale=0.1)
    assert counts.pop("drain at 50") == 1_000  # the 50 at the gate are no more than 5 %
    assert counts.pop("drain at 10") == 200
    assert set(counts.values()) == {100}
    assert counts_of(share=1, scale=1)["drain at 50"] == 15_000


class SlowLog:
    """A server whose slow log has the calls of rivals, with arguments that are not text."""

    def slowlog_get(self, _: int) -> list[dict[str, Any]]:
        return [
            {"command": b"LPUSH huey.redis.bench \x80\x04\x9a", "duration": 700},
            {"command": b"FCALL gmo_add 1 glide:{bench}:id \x9a", "duration": 7_000},
        ]

    def slowlog_reset(self) -> None:
        pass


def test_the_longest_call_has_a_name_whatever_bytes_a_rival_sent() -> None:
    assert longest_call(SlowLog()) == "7.0 ms gmo_add, 1 over 5 ms"
