"""Runs the cases of an entry in chunks, each with a seed of its own: a violation ends only its chunk."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import hypothesis
from hypothesis import strategies as st

import glidemq_orchestrate
from tests.fuzz.entry import Entry, Target
from tests.fuzz.limit import SECONDS, TooLong, limited
from tests.fuzz.shown import shown
from tests.fuzz.violation import Violation

CHUNK: Final = 200
SHRINK_SECONDS: Final = 5.0
SHOWN: Final = 1_500


@dataclass
class Finding:
    """A violation: the chunk that found it first, its smallest input, and how often it happened."""

    what: str
    chunk: int
    smallest: str
    times: int = 1


@dataclass
class Report:
    """What a run of an entry found, by signature."""

    entry: str
    cases: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    inputs: str = ""

    def __str__(self) -> str:
        """One line, and three for each violation."""
        lines = [f"{self.entry}: {self.cases:,} cases, {self.seconds:.0f} s, {len(self.findings)} violations"]
        for one in self.findings.values():
            lines += [f"* {one.what}", f"  chunk {one.chunk}, {one.times} times; smallest input:"]
            lines += [f"  {one.smallest[:SHOWN]}"]
        return "\n".join(lines)


class _Enough(KeyboardInterrupt):
    """Ends a chunk early; Hypothesis passes it on."""


class _Case:
    """An input; Hypothesis shows it as ``shown`` does, whatever is in it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return shown(self.value)


@st.composite
def _cases(draw: st.DrawFn, inputs: st.SearchStrategy[Any]) -> _Case:
    return _Case(draw(inputs))


@dataclass
class _Chunk:
    """One chunk while it runs."""

    number: int
    most: int
    known: dict[str, Finding]
    ended_at: float = 0.0
    cases: int = 0
    found: Violation | None = None
    digest: Any = field(default_factory=hashlib.sha256)

    def record(self, violation: Violation, value: Any) -> bool:
        """Take a violation; returns whether it is the one that this chunk looks for."""
        text = shown(value)
        if self.found is None and violation.signature not in self.known:
            self.found, self.ended_at = violation, time.monotonic() + SHRINK_SECONDS
            self.known[violation.signature] = Finding(str(violation), self.number, text)
            return True
        known = self.known.get(violation.signature)
        if known is None:  # another one, met while looking for the smallest input
            return False
        known.times += self.found is None
        if len(text) < len(known.smallest):
            known.smallest, known.what = text, str(violation)
        return self.found is not None and self.found.signature == violation.signature


def run(
    entry: Entry,
    seed: int,
    cases: int,
    *,
    seconds: float = SECONDS,
    hard: bool = False,
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run so many cases; the same seed has the same cases.

    Args:
        entry: What is given bad input.
        seed: Any whole number.
        cases: How many.
        seconds: The time limit of one case.
        hard: End the process at a case that cannot be interrupted.
        progress: Called after each chunk.
    """
    _import_all()
    report, began, digest = Report(entry.name), time.monotonic(), hashlib.sha256()
    with entry.opened() as target:
        number = 0
        while report.cases < cases:
            chunk = _Chunk(number, cases - report.cases, report.findings)
            _run_chunk(entry, target, seed, chunk, (seconds, hard))
            if not chunk.cases:
                raise RuntimeError(f"{entry.name}: no input could be made")
            digest.update(chunk.digest.digest())
            report.cases, number = report.cases + chunk.cases, number + 1
            report.seconds = time.monotonic() - began
            progress(report)
    report.inputs = digest.hexdigest()
    return report


def _run_chunk(entry: Entry, target: Target, seed: int, chunk: _Chunk, limit: tuple[float, bool]) -> None:
    def judge(case: _Case) -> None:
        if chunk.found is None:
            if chunk.cases == chunk.most:
                raise _Enough
            chunk.cases += 1
            chunk.digest.update(repr(case).encode(errors="backslashreplace"))
        elif time.monotonic() > chunk.ended_at:
            raise _Enough
        _judge(target, chunk, case.value, limit)

    settings = hypothesis.settings(
        max_examples=CHUNK,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    name = f"{seed}/{entry.name}/{chunk.number}"
    seeded = hypothesis.seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    try:
        seeded(settings(hypothesis.given(_cases(target.inputs))(judge)))()
    except (Violation, _Enough):
        pass
    except Exception:
        if chunk.found is None:
            raise
        # It did not happen again with the same input, or Hypothesis cannot make this one smaller.


def _judge(target: Target, chunk: _Chunk, value: Any, limit: tuple[float, bool]) -> None:
    """Run one case; raise if it shows the violation that the chunk looks for."""
    seconds, hard = limit
    try:
        with limited(seconds, hard=hard):
            target.attempt(value)
    except Violation as violation:
        if chunk.record(violation, value):
            raise
    except TooLong:
        chunk.record(Violation(f"not done within {seconds:g} s", "too long"), value)
        raise _Enough from None  # to look for a smaller one would take as long each time


def _import_all() -> None:
    """Hypothesis also draws constants of the modules that are loaded: always the same ones."""
    for module in pkgutil.walk_packages(glidemq_orchestrate.__path__, "glidemq_orchestrate."):
        if not module.name.startswith(("glidemq_orchestrate.spark", "glidemq_orchestrate.__main__")):
            importlib.import_module(module.name)
