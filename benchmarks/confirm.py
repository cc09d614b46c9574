"""What confirmed writes cost, and what a failover loses without: ``python -m benchmarks.confirm``.

One server of each kind, and every setting measured in turns on it: each round visits all of them in another
order. ``--failovers N`` kills so many primaries with SIGKILL while jobs are being added, and counts the
acknowledged ones that the promoted replica does not have.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from glidemq_orchestrate import (
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    NewJob,
    Queue,
    Worker,
)
from glidemq_orchestrate.errors import GlideMQError
from tests.server.connections.topologies import Server, running_pair

ADDS: Final = 1_000
BULK: Final = 30_000
DRAIN: Final = 15_000
NODES: Final = 5_000
LIMIT: Final = 5.0


@dataclass(frozen=True)
class Setting:
    """One way to run: how the server writes its file, and what the connection waits for."""

    fsync: str
    confirm: str | None

    def __str__(self) -> str:
        """As shown in the table."""
        return f"appendfsync {self.fsync}, confirm {self.confirm or '-'}"


SETTINGS: Final = (
    Setting("everysec", None),
    Setting("everysec", "replicas:1"),
    Setting("everysec", "disk"),
    Setting("always", None),
    Setting("always", "disk"),
    Setting("always", "disk,replicas:1"),
)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many times to measure; medians are shown.")] = 3,
    failovers: Annotated[int, typer.Option(min=0, help="Primaries to kill, with each setting.")] = 0,
) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        if failovers:
            show_losses(Path(directory), failovers)
        else:
            show_cost(Path(directory), rounds)


def show_cost(directory: Path, rounds: int) -> None:
    """Print the median of each row, and its ratio to the same server without confirmation."""
    found: dict[Setting, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with replicated(directory) as primary:
        for turn in range(rounds):
            order = list(SETTINGS)
            random.Random(turn).shuffle(order)
            for setting in order:
                print(f"round {turn + 1}: {setting}", file=sys.stderr)
                primary.client.flushall()
                primary.client.config_set("appendfsync", setting.fsync)
                url = f"valkey://127.0.0.1:{primary.port}"
                settings = ConnectionSettings(url, confirm=setting.confirm)
                for name, measure in ROWS.items():
                    found[setting][name].append(measure(settings))
    for name in ROWS:
        print(f"\n{name}")
        for setting in SETTINGS:
            rate = statistics.median(found[setting][name])
            base = statistics.median(found[Setting(setting.fsync, None)][name])
            print(f"  {setting!s:48} {rate:>10,.0f}  {rate / base:5.2f}x")


@contextmanager
def replicated(directory: Path) -> Iterator[Server]:
    """A primary with a replica, both with an append-only file."""
    with ExitStack() as stack:
        primary = Server(directory / "primary")
        stack.callback(primary.close)
        replica = Server(directory / "replica", "--replicaof", "127.0.0.1", str(primary.port))
        stack.callback(replica.close)
        while replica.client.role()[3] != "connected":
            time.sleep(0.02)
        yield primary


def one_by_one(settings: ConnectionSettings) -> float:
    """Jobs per second, added in as many calls by one client, for at most five seconds."""
    with Queue("one", settings) as queue:
        queue.counts()
        began, count = time.monotonic(), 0
        while count < ADDS and time.monotonic() - began < LIMIT:
            queue.add("work")
            count += 1
        return count / (time.monotonic() - began)


def in_bulk(settings: ConnectionSettings) -> float:
    """Jobs per second, added by one ``add_many``."""
    with Queue("bulk", settings) as queue:
        queue.counts()
        jobs = [NewJob("work", n) for n in range(BULK)]
        began = time.monotonic()
        queue.add_many(jobs)
        return BULK / (time.monotonic() - began)


def submitted(settings: ConnectionSettings) -> float:
    """Nodes per second of a flow, submitted at once."""
    nodes = [
        FlowNode(f"n{n}", queue="flow", job="work", after=[f"n{n - 1}"] if n else []) for n in range(NODES)
    ]
    with FlowProducer(settings) as flows:
        flows.list()
        began = time.monotonic()
        flows.submit(FlowSpec("n", nodes), flow_id="f")
        return NODES / (time.monotonic() - began)


def drained(settings: ConnectionSettings) -> float:
    """Jobs per second until the hooks of a worker have learned of every result."""
    worker = Worker(settings, queues=["drain"], concurrency=10)
    ends, all_ended = [0], threading.Event()

    async def work(ctx: Any) -> int:
        return int(ctx.data)

    def on_job(event: Any) -> None:
        if event.kind == "completed":
            ends[0] += 1
            if ends[0] == DRAIN:
                all_ended.set()

    worker.handlers.handler("work")(work)
    worker.handlers.on_job(on_job)
    with Queue("drain", settings) as queue:
        queue.add_many([NewJob("work", n) for n in range(DRAIN)])
    with worker.running():
        began = time.monotonic()
        if not all_ended.wait(120):
            raise AssertionError(f"only {ends[0]} of {DRAIN} ended")
        return DRAIN / (time.monotonic() - began)


ROWS: Final[dict[str, Callable[[ConnectionSettings], float]]] = {
    "added one by one, jobs/s": one_by_one,
    "added in bulk, jobs/s": in_bulk,
    "flow of 5,000 submitted, nodes/s": submitted,
    "drained at concurrency 10 until confirmed, jobs/s": drained,
}


def show_losses(directory: Path, failovers: int) -> None:
    """Print how many acknowledged jobs each failover lost."""
    for confirm in (None, "replicas:1"):
        lost, added = [], 0
        for number in range(failovers):
            one = directory / f"{confirm}-{number}".replace(":", "-")
            one.mkdir()
            acknowledged, missing = fail_over(one, confirm, seed=number)
            added += acknowledged
            lost.append(missing)
            print(f"confirm {confirm or '-'}: {missing} of {acknowledged} lost", file=sys.stderr)
        print(
            f"confirm {confirm or '-'}: {sum(lost)} of {added:,} acknowledged jobs lost by {failovers} "
            f"failovers, {sum(1 for one in lost if one)} of which lost some, {max(lost)} at most"
        )


def fail_over(directory: Path, confirm: str | None, *, seed: int) -> tuple[int, int]:
    """Kill a primary while four clients add jobs; returns the acknowledged jobs and the lost ones."""
    acknowledged: list[str] = []
    with running_pair(directory) as pair:
        primary, replica = pair.primary, pair.replica
        while not pair.sentinel.client.sentinel_slaves("main"):
            time.sleep(0.05)
        settings = ConnectionSettings(pair.url, confirm=confirm, confirm_timeout=1.0)

        def add(number: int) -> None:
            with Queue("etl", settings) as queue:
                for count in range(1_000_000):
                    job_id = f"{number}-{count}"
                    try:
                        queue.add("work", options=JobOptions(job_id=job_id))
                    except GlideMQError:
                        return
                    acknowledged.append(job_id)

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1 + random.Random(seed).random())
        primary.kill()
        for thread in threads:
            thread.join()
        while replica.client.role()[0] != "master":
            time.sleep(0.05)
        lost = [one for one in acknowledged if not replica.client.exists(f"glide:{{etl}}:job:{one}")]
    return len(acknowledged), len(lost)


if __name__ == "__main__":
    typer.run(main)
