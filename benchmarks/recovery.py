"""The time to recover after each kind of fault: ``python -m benchmarks.recovery``.

Four workers with six places each run jobs of 50 ms; a client keeps half a second of work in the queue, since
what is taken back from a dead worker goes to the end of its queue; and a supervisor leads. Then something
breaks (``benchmarks.faults``). From the starts and accepted results of all jobs, which the workers write to
files with the time, follow

- lasted: how long the fault itself lasted: until the server replied again, the replica was promoted, another
  supervisor led;
- pause: the longest time without any accepted result; without a fault it is 0.05 to 0.1 s, since all jobs
  take equally long;
- back: until two seconds in a row began that each had 80 % of the results per second before, of those workers
  that are left;
- all ended: until every job that was active at the fault had its result; those of a dead worker elsewhere.

All but ``pause`` count from the fault. Each repetition has new servers and workers; median and maximum are
shown. A job that was active and has no result within a minute makes the exit code 1.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks import processes
from benchmarks.crew import Crew
from benchmarks.faults import FAULTS, LIMIT_SECONDS, Fault, Scene, kill_server, kill_worker
from benchmarks.plots import plot
from benchmarks.processes import QUEUE
from benchmarks.report import machine_now
from glidemq_orchestrate import JobState, NewJob, Queue
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.errors import TransportError

WORKERS: Final = 4
PLACES: Final = 6
JOB_SECONDS: Final = 0.05
BEFORE_SECONDS: Final = 3.0
AFTER_SECONDS: Final = 3.0
SHARE: Final = 0.8
QUICK: Final = (kill_worker, kill_server)
MEASURES: Final = ("lasted", "pause", "back", "all ended")


def main(  # noqa: PLR0913  its options
    rounds: Annotated[int, typer.Option(min=1, help="How often each fault happens.")] = 3,
    lease: Annotated[float, typer.Option(min=1, help="The lease of the workers, in seconds.")] = 5.0,
    only: Annotated[str, typer.Option(help="Only the faults whose name contains this.")] = "",
    *,
    quick: Annotated[bool, typer.Option(help="One round of two faults, with a lease of a second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this SVG file.")] = None,
) -> None:
    """Break things while jobs run, and measure how long it takes until all is well again."""
    progress = Console(stderr=True)
    faults = [fault for fault in FAULTS if only in fault.name]
    if quick:
        rounds, lease = 1, 1.0
        faults = [fault for fault in faults if fault.harm in QUICK]
    found: dict[str, list[Recovery]] = defaultdict(list)
    machine = ""
    for turn in range(rounds):
        for fault in faults:
            recovery, machine = once(fault, lease, machine)
            found[fault.name].append(recovery)
            progress.print(f"round {turn + 1}/{rounds}: {fault.name}: {recovery}", style="dim", markup=False)
    if plot_to is not None:
        draw(plot_to, found)
    if as_json:
        runs = {name: [asdict(one) for one in ones] for name, ones in found.items()}
        json.dump({"machine": machine, "lease": lease, "runs": runs}, sys.stdout)
    else:
        out = Console(width=None if sys.stdout.isatty() else 200)
        out.print(f"\n{machine}\n{rounds} rounds; seconds: median / maximum")
        rows = [row(fault, found[fault.name], lease) for fault in faults]
        out.print("\n", summary_table("Recovery", rows))
    raise typer.Exit(1 if any(one.unended for runs in found.values() for one in runs) else 0)


@dataclass(frozen=True)
class Recovery:
    """What was measured after a fault; seconds.

    Attributes:
        active: How many jobs were active at the fault.
        again: How many of them were started again.
        unended: How many of them have no result.
        before: Results per second before the fault.
    """

    lasted: float
    pause: float
    back: float
    all_ended: float
    active: int
    again: int
    unended: int
    before: float

    def __str__(self) -> str:
        """For the progress."""
        return (
            f"lasted {self.lasted:.2f} s, pause {self.pause:.2f} s, back after {self.back:.2f} s, all "
            f"{self.active} ended after {self.all_ended:.2f} s, {self.again} ran again, {self.before:.0f}/s"
        )


def once(fault: Fault, lease: float, machine: str) -> tuple[Recovery, str]:
    """Break something once; what was measured, and the machine."""
    with (
        tempfile.TemporaryDirectory() as name,
        fault.ground(Path(name)) as scene,
        Crew(processes, Path(name) / "processes.log") as crew,
    ):
        folder = Path(name)
        scene.lease = lease
        machine = machine or machine_now(scene.primary.client)
        scene.supervisor = crew.start("supervisor", "supervisor", scene.url)
        for number in range(WORKERS):
            options = {"seconds": JOB_SECONDS, "record": f"{name}/{number}.record", "at_once": True}
            options |= {"prefetch": 0, "lease": lease, "max_stalled": 100}
            scene.workers.append(
                crew.begin(f"worker {number}", "worker", scene.url, PLACES, json.dumps(options))
            )
        crew.ready()
        with Feeder(scene.url, int(fault.backlog_seconds * WORKERS * PLACES / JOB_SECONDS)):
            time.sleep(BEFORE_SECONDS)
            at = time.monotonic()
            fault.harm(scene)
            lasted = time.monotonic() - at
            return recovered(scene, folder, at, lasted), machine


class Feeder(threading.Thread):
    """Keeps so many jobs waiting while the block runs, whatever happens to the server."""

    def __init__(self, url: str, depth: int) -> None:
        super().__init__(daemon=True)
        self._url, self._depth, self._over = url, depth, threading.Event()

    def run(self) -> None:
        """Add what is missing, 50 times per second."""
        with Queue(QUEUE, self._url) as queue:
            while not self._over.wait(0.02):
                with suppress(TransportError):
                    waiting = queue.counts(indexed_only=True).get(JobState.WAITING, 0)
                    queue.add_many([NewJob("work")] * max(self._depth - waiting, 0))

    def __enter__(self) -> None:
        """Begin."""
        self.start()

    def __exit__(self, *_: object) -> None:
        """Stop, once the last call has returned."""
        self._over.set()
        self.join()


def recovered(scene: Scene, folder: Path, at: float, lasted: float) -> Recovery:
    """Wait until all is well, and measure how long it took."""
    deadline, least = time.monotonic() + LIMIT_SECONDS, BEFORE_SECONDS - 1
    while True:
        time.sleep(0.25)
        starts, ends = read(folder)
        accepted = sorted(ends.values())
        before = (bisect_left(accepted, at) - bisect_left(accepted, at - least)) / least
        back = back_after(accepted, at, before * SHARE * (WORKERS - scene.ended) / WORKERS)
        active = {job for job, when in starts.items() if when[0] < at and ends.get(job, at) >= at}
        if back is not None:  # a killed worker may not have written what the server had accepted
            ends |= told(scene.url, active - ends.keys())
        missing = active - ends.keys()
        is_well = not missing and back is not None and time.monotonic() > at + lasted + AFTER_SECONDS
        if is_well or time.monotonic() > deadline:
            break
    after = accepted[max(bisect_left(accepted, at) - 1, 0) :]
    found = Recovery(
        lasted=lasted,
        pause=max((later - one for one, later in pairwise(after)), default=LIMIT_SECONDS),
        back=LIMIT_SECONDS if back is None else back,
        all_ended=max((ends[job] - at for job in active - missing), default=0.0),
        active=len(active),
        again=sum(any(when >= at for when in starts[job]) for job in active),
        unended=len(missing),
        before=before,
    )
    return replace(found, **{name: round(value, 3) for name, value in asdict(found).items()})


def read(folder: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """When each job was started, each time, and when its result was accepted."""
    starts: dict[str, list[float]] = defaultdict(list)
    ends: dict[str, float] = {}
    for file in folder.glob("*.record"):
        for line in file.read_text().splitlines():
            words = line.split(" ")
            if len(words) == 3 and words[0] == "start":
                starts[words[1]].append(float(words[2]))
            elif len(words) == 3 and words[0] == "accepted":
                ends[words[1]] = float(words[2])
    return {job: sorted(when) for job, when in starts.items()}, ends


def told(url: str, jobs: set[str]) -> dict[str, float]:
    """When these jobs have completed, as the server says."""
    ahead = time.time() - time.monotonic()
    if not jobs:
        return {}
    with Queue(QUEUE, url) as queue:
        found = [queue.get_job(job) for job in jobs]
    return {
        job.id: job.finished_at.timestamp() - ahead
        for job in found
        if job.state == JobState.COMPLETED and job.finished_at is not None
    }


def back_after(accepted: list[float], at: float, wanted: float) -> float | None:
    """Seconds until two seconds in a row had so many results each; None: not yet."""
    step = 0
    while accepted and at + step / 10 + 2 <= accepted[-1] + 0.1:
        edges = [bisect_left(accepted, at + step / 10 + second) for second in range(3)]
        if min(edges[1] - edges[0], edges[2] - edges[1]) >= wanted:
            return step / 10
        step += 1
    return None


def row(fault: Fault, runs: list[Recovery], lease: float) -> dict[str, Any]:
    """Median and maximum of each measure."""
    measured = {measure: [getattr(one, measure.replace(" ", "_")) for one in runs] for measure in MEASURES}
    return {
        "fault": fault.name,
        **{name: f"{statistics.median(values):.2f} / {max(values):.2f}" for name, values in measured.items()},
        "active": str(round(statistics.median(one.active for one in runs))),
        "ran again": str(round(statistics.median(one.again for one in runs))),
        "no result": str(sum(one.unended for one in runs)),
        "bounded by": fault.bound.format(lease=lease),
    }


def draw(file: Path, found: dict[str, list[Recovery]]) -> None:
    """Each repetition of each fault as a point."""
    names = list(reversed(found))
    with plot(file, rows=2, title="Time to recover, s") as axes:
        for axis, measures in zip(axes, (("pause", "back"), ("all_ended",)), strict=True):
            for at, measure in enumerate(measures):
                points = [
                    (getattr(one, measure), y - 0.15 * at)
                    for y, name in enumerate(names)
                    for one in found[name]
                ]
                axis.plot(*zip(*points, strict=True), "o", markersize=3, label=measure.replace("_", " "))
            axis.set_yticks(range(len(names)), names, fontsize=7)
            axis.set_xlabel("s")
            axis.set_xlim(left=0)
            axis.legend(fontsize=7)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    app.command(help=__doc__)(main)
    app()
