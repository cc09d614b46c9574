"""How fast one command drains a queue with 1, 2 and 4 worker processes.

``python -m benchmarks.scaling [--quick] [--json]``. The processes share the same ``--concurrency``, and all
are ready before the paused queue is resumed. The server needs a core as well: with jobs that do nothing it
is the bottleneck, with jobs that compute the cores of the machine are. Only the ratios count.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from glidemq_orchestrate import Context, EmbeddedServer, Handlers, JobState, NewJob, Queue
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.foundation.machine import cores

ROOT: Final = Path(__file__).resolve().parent.parent
PROCESSES: Final = (1, 2, 4)
CONCURRENCY: Final = 48
JOBS: Final = {"nothing": 10_000, "compute": 1_000}
COMPUTE_SECONDS: Final = 0.002
ROUNDS: Final = 5
APP: Final = "benchmarks.scaling"
handlers: Final = Handlers()


@handlers.handler
async def nothing(_ctx: Context) -> int:
    """Do nothing."""
    return 1


@handlers.handler
async def compute(_ctx: Context) -> int:
    """Compute for two milliseconds of processor time."""
    until, count = time.thread_time() + COMPUTE_SECONDS, 0
    while time.thread_time() < until:
        count += 1
    return count


def drained(url: str, name: str, processes: int, jobs: int) -> float:
    """Jobs per second that so many processes run of one handler."""
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", APP, "--queue", "bench"]
    command += ["--processes", str(processes), "--concurrency", str(CONCURRENCY), "--log-level", "error"]
    with Queue("bench", url) as queue:
        queue.pause()
        for begin in range(0, jobs, 1_000):
            queue.add_many([NewJob(name, None) for _ in range(min(1_000, jobs - begin))])
        running = subprocess.Popen([*command, "--url", url], cwd=ROOT)
        try:
            _until(lambda: len(queue.workers()) == processes, 0.1)
            began = time.monotonic()
            queue.resume()
            _until(lambda: queue.counts()[JobState.COMPLETED] == jobs, 0.01)
            took = time.monotonic() - began
        finally:
            running.terminate()
            running.wait()
        queue.obliterate(force=True)
    return jobs / took


def _until(is_so: Any, pause: float) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until, "the workers do not start, or do not run everything"
        time.sleep(pause)


def measure(url: str, rounds: int, scale: float) -> list[dict[str, Any]]:
    """One row for each handler and number of processes: the median of interleaved rounds."""
    pairs = [(name, processes) for name in JOBS for processes in PROCESSES]
    rates: dict[tuple[str, int], list[float]] = {pair: [] for pair in pairs}
    for _ in range(rounds):
        for name, processes in random.sample(pairs, len(pairs)):
            rates[name, processes].append(drained(url, name, processes, int(JOBS[name] * scale)))
    middle = {pair: statistics.median(found) for pair, found in rates.items()}
    return [
        {
            "jobs": name,
            "processes": processes,
            "jobs_per_second": middle[name, processes],
            "to_one_process": round(middle[name, processes] / middle[name, 1], 2),
        }
        for name, processes in pairs
    ]


def main() -> None:
    """Measure and print."""
    is_quick = "--quick" in sys.argv
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    with EmbeddedServer() as server:
        rows = measure(server.url, 1 if is_quick else ROUNDS, 0.02 if is_quick else 1)
    if "--json" in sys.argv:
        print(json.dumps({"cores": cores(), "rows": rows}, indent=2))
    else:
        Console().print(summary_table(f"Draining by worker processes, on {cores()} cores", rows))


if __name__ == "__main__":
    main()
