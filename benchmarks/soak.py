"""Whether anything grows while the same work goes on: ``python -m benchmarks.soak --minutes 60``.

A server, a worker with async handlers, one with threads, one with processes, a supervisor, and a client that
submits flows and jobs at a fixed rate (``benchmarks.steady``), all in processes of their own. What has ended
is kept for 30 s, so that as much is removed as is added. The tombstones of flows, which stay for 30 days, are
given a minute by this program, as if 30 days had passed. The server keeps no latency histograms (25 kB for
each command that is used for the first time) and no log of slow calls (some 3 kB for each, up to 128): both
are bounded, and grow for hours on a busy machine.

Every few seconds it reads memory, open descriptors and threads of each process, and of the server its memory,
keys, streams and connections. After a warm-up a line is put through each series; its growth per hour is known
to some uncertainty (``benchmarks.trend``). A series is **flat** if its growth, at the upper end of the
uncertainty, is at most

- memory: 2 MiB per hour, and 1 MiB as the server counts its own. With 25,000 flows and 350,000 jobs per hour
  these are 80 bytes for each flow and 6 for each job: less than anything that either could leave behind.
- descriptors, threads: 3 per hour. What leaked one with the rarest regular event, each 10 s, would be at 360,
  and a busy moment opens connections for a minute or more, or starts a thread that stays for the next one.
- keys, entries of streams, connections: a twentieth of their number per hour, or 5.

It **grows** if even the lower end is beyond that, and is undecided in between: a run that was too short. The
exit code is 1 if anything is not flat, or if a flow did not end as it should. ``--quick`` takes some seconds
and shows only that the soak works: then the exit code says nothing about growth.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import redis
import typer
from rich.console import Console

from benchmarks import steady
from benchmarks.crew import Crew, Member
from benchmarks.plots import plot
from benchmarks.report import machine_now
from benchmarks.steady import QUEUE
from benchmarks.trend import Trend, trend
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table

PATIENCE_SECONDS: Final = 120.0  # a busy machine can keep the server from replying for a while
MIB: Final = 2**20
ROLES: Final = {
    "supervisor": "supervisor",
    "worker, async": "async",
    "worker, threads": "threads",
    "worker, processes": "processes",
    "client": "client",
}
TOMBSTONE_MS: Final = 60_000
SWEPT_MS: Final = 5_000  # so long after its end what is left of a tombstone is removed
POINTS: Final = 240

Series = dict[str, list[float]]


def main(  # noqa: PLR0913  its options
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to go on after the warm-up.")] = 60.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Minutes that do not count.")] = 10.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two samples.")] = 5.0,
    *,
    quick: Annotated[
        bool, typer.Option(help="Some seconds: shows that it works, not that it is flat.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures and samples as JSON.")] = False,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this SVG file.")] = None,
) -> None:
    """See whether memory, descriptors, threads and keys stay flat while the same work goes on for long."""
    progress = Console(stderr=True)
    if quick:
        minutes, warm_up, every = 0.12, 0.03, 0.2
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "processes.log")
        soak.run(minutes * 60, warm_up * 60, every, progress)
    trends = {name: trend(soak.hours, values, limit_of(name, values)) for name, values in soak.kept.items()}
    result = soak.report(trends)
    if plot_to is not None:
        draw(plot_to, soak.hours, soak.kept)
    if as_json:
        json.dump(result, sys.stdout)
    else:
        show(Console(width=None if sys.stdout.isatty() else 140), result, trends)
    is_flat = quick or all(one.verdict == "flat" for one in trends.values())
    raise typer.Exit(0 if is_flat and not soak.wrong else 1)


class Soak:
    """One run and its samples.

    Attributes:
        hours: When each sample was taken, from the end of the warm-up on.
        kept: What was measured then, by name.
        wrong: What ended otherwise than it should.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self.hours: list[float] = []
        self.kept: Series = defaultdict(list)
        self.wrong: list[str] = []
        self.ends: dict[str, Any] = {}
        self.machine, self._seconds, self._peak = "", 0.0, 0

    def run(self, seconds: float, warm_up: float, every: float, progress: Console) -> None:
        """Work and sample for so long, then stop everybody and see how the work has ended."""
        with EmbeddedServer() as server, Crew(steady, self._log) as crew:
            url = server.url.replace("valkey://", "redis://")
            client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=PATIENCE_SECONDS)
            self.machine = machine_now(client)
            client.config_set("latency-tracking", "no")
            client.config_set("slowlog-log-slower-than", -1)
            first, *others = ROLES.items()
            members = [crew.start(*first, server.url)]  # it leads
            members += [crew.begin(*other, server.url) for other in others]
            crew.ready()
            watched = {member.name: member.watched() for member in members}
            watched["server"] = psutil.Process(server.pid)
            begun, turn = time.monotonic(), 0
            while (now := time.monotonic() - begun) < warm_up + seconds:
                found = sample(watched, client)
                bury(client)
                if now >= warm_up:
                    self.hours.append(now / 3600)
                    for name, value in found.items():
                        self.kept[name].append(value)
                turn += 1
                if turn % 60 == 1:
                    progress.print(f"{now / 60:.1f} min: {brief(found)}", style="dim", markup=False)
                time.sleep(max(every - (time.monotonic() - begun - now), 0))
            self._seconds = time.monotonic() - begun
            client.close()
            self._end(members)

    def _end(self, members: list[Member]) -> None:
        """Stop the client first, which waits for what it has submitted, then the others."""
        for member in reversed(members):
            if not member.is_alive:
                self.wrong.append(f"{member.name} ended by itself: {self._log.read_text()[-500:]}")
            output = member.stop()
            if output.startswith("{"):
                self.ends[member.name] = json.loads(output)
        self.wrong += self.ends.get("client", {"wrong": ["the client did not say what it did"]})["wrong"]

    def report(self, trends: dict[str, Trend]) -> dict[str, Any]:
        """For ``--json``, with at most 240 points for each series."""
        step = -(-len(self.hours) // POINTS)
        return {
            "machine": self.machine,
            "minutes": round(self._seconds / 60, 1),
            "samples": len(self.hours),
            "ends": self.ends,
            "wrong": self.wrong,
            "trends": {
                name: {key: round(value, 3) for key, value in asdict(one).items()} | {"verdict": one.verdict}
                for name, one in trends.items()
            },
            "hours": [round(hour, 4) for hour in self.hours[::step]],
            "series": {
                name: [round(value, 2) for value in values[::step]] for name, values in self.kept.items()
            },
        }


def sample(watched: dict[str, psutil.Process], client: Any) -> dict[str, float]:
    """Everything that is watched, now."""
    found: dict[str, float] = {}
    for name, process in watched.items():
        family = [process, *process.children(recursive=True)] if name != "server" else [process]
        with_memory = [one for one in family if one.is_running()]
        found[f"{name}: memory, MiB"] = sum(one.memory_info().rss for one in with_memory) / MIB
        found[f"{name}: descriptors"] = sum(one.num_fds() for one in with_memory)
        found[f"{name}: threads"] = sum(one.num_threads() for one in with_memory)
    info = client.info()
    found["server: used_memory, MiB"] = info["used_memory"] / MIB
    found["server: keys"] = info.get("db0", {"keys": 0})["keys"]
    found["server: connections"] = info["connected_clients"]
    found["server: stream of waiting jobs"] = client.xlen(f"glide:{{{QUEUE}}}:stream")
    found["server: stream of events"] = client.xlen(f"glide:{{{QUEUE}}}:events")
    return found


def bury(client: Any) -> None:
    """Let tombstones end after a minute instead of 30 days."""
    for pattern in ("glide:*:gmo:flow:*", "glide:gmo:home:*"):
        keys = list(client.scan_iter(pattern, count=1_000))
        with client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.pttl(key)
            lives = pipeline.execute()
            for key, life in zip(keys, lives, strict=True):
                if life > TOMBSTONE_MS:
                    pipeline.pexpire(key, TOMBSTONE_MS)
            pipeline.execute()
    soon = client.time()[0] * 1000 + TOMBSTONE_MS + SWEPT_MS
    for key in client.scan_iter("glide:*:gmo:expiring", count=1_000):
        late = client.zrangebyscore(key, soon, "+inf")
        if late:
            client.zadd(key, dict.fromkeys(late, soon), xx=True)


def limit_of(name: str, values: list[float]) -> float:
    """What growth per hour counts as none; see the top."""
    if "used_memory" in name:
        return 1.0
    if "memory" in name:
        return 2.0
    if name.endswith((": descriptors", ": threads")):
        return 3.0
    return max(sum(values) / len(values) / 20, 5.0)


def brief(found: dict[str, float]) -> str:
    """A line of progress."""
    return ", ".join(
        f"{name} {value:,.1f}" for name, value in found.items() if "memory" in name or "keys" in name
    )


def show(out: Console, result: dict[str, Any], trends: dict[str, Trend]) -> None:
    """Print the tables."""
    out.print(
        f"\n{result['machine']}; {result['minutes']} minutes, {result['samples']} samples after the warm-up"
    )
    rows = [
        {
            "series": name,
            "median": f"{one.level:,.2f}",
            "per hour": f"{one.per_hour:+,.3f}",
            "±": f"{one.uncertainty:,.3f}",
            "flat up to": f"{one.limit:,.2f}",
            "verdict": one.verdict,
        }
        for name, one in trends.items()
    ]
    out.print("\n", summary_table("Growth", rows))
    ends = [
        {"process": name, "has seen": str(seen.get("ends", seen))} for name, seen in result["ends"].items()
    ]
    out.print("\n", summary_table("What was done", ends))
    for text in result["wrong"]:
        out.print(text, style="red", markup=False)


def draw(file: Path, hours: list[float], series: Series) -> None:
    """Memory, descriptors, threads, keys and streams over time."""
    numbers = ("keys", "connections", "stream of waiting jobs", "stream of events")
    panels = {"MiB": ("memory, MiB", "used_memory, MiB"), "descriptors": ("descriptors",),
              "threads": ("threads",), "number on the server": numbers}  # fmt: skip
    minutes = [hour * 60 for hour in hours]
    with plot(file, rows=len(panels), title="While the same work goes on") as axes:
        for axis, (label, wanted) in zip(axes, panels.items(), strict=True):
            for name, values in series.items():
                process, _, what = name.partition(": ")
                if what in wanted:
                    shown = process if what == wanted[0] and len(wanted) < 3 else what
                    axis.plot(minutes, values, label=shown, linewidth=0.8)
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=7, ncols=3)
        axes[-1].set_xlabel("minutes")


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    app.command(help=__doc__)(main)
    app()
