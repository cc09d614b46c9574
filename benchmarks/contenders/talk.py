"""The protocol of harness and producer: a JSON value per line. Times are measured in the producer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders.handlers import LOOK_SECONDS, OPEN


class Producer(Protocol):
    """The calls that are measured, and those that measuring needs."""

    def add_one_by_one(self, count: int) -> None:
        """Add this many jobs, each confirmed before the next is sent."""

    def add_in_bulk(self, count: int) -> None:
        """Add this many jobs in the fastest way available."""

    def add_gates(self, count: int, folder: str) -> None:
        """Add jobs that each hold a slot of the worker until the gate opens."""

    def left(self) -> int:
        """The number of jobs that have not ended."""

    def run_one(self) -> None:
        """Add one job and wait until it is seen to have ended."""


class FlowingProducer(Producer, Protocol):
    """A producer that supports flows."""

    def submit(self, shape: str, size: int) -> bool:
        """Submit a flow; False when the contender cannot express it."""

    def wait(self) -> None:
        """Wait for the end of that flow."""


def seconds_of(call: Callable[..., object], *args: object) -> float:
    """How many seconds a call takes."""
    begun = time.perf_counter()
    call(*args)
    return time.perf_counter() - begun


def reply_to(producer: Any, do: str, args: dict[str, Any]) -> Any:
    """Execute a command of the harness; returns how long it took."""
    if folder := args.get("folder"):
        if do == "add_gates":
            return producer.add_gates(args["count"], folder)
        Path(folder, OPEN).touch()
        return seconds_of(producer.wait if do == "wait" else lambda: until_empty(producer))
    if do == "run_one":
        return [seconds_of(producer.run_one) for _ in range(args["count"])]
    if do == "submit":
        begun = time.perf_counter()
        return time.perf_counter() - begun if producer.submit(args["shape"], args["size"]) else None
    return seconds_of(getattr(producer, do), args["count"])


def until_empty(producer: Producer) -> None:
    """Wait until nothing is left."""
    while producer.left():
        time.sleep(LOOK_SECONDS)


def serve(producer: Producer) -> None:
    """Execute commands until the harness closes standard input."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        args = json.loads(line)
        print(json.dumps(reply_to(producer, args.pop("do"), args)), flush=True)


def run(make_producer: Callable[[str], Producer], work: Callable[[str, int], None]) -> None:
    """The command line of a contender: ``producer URL`` or ``worker URL CONCURRENCY``."""
    role, url = sys.argv[1:3]
    if role == "producer":
        serve(make_producer(url))
    else:
        work(url, int(sys.argv[3]))
