"""How the harness and a producer talk: a JSON object a line, there and back. Times are taken on this side."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders.handlers import LOOK_SECONDS, OPEN


class Producer(Protocol):
    """What is measured, and what measuring needs."""

    def add_one_by_one(self, count: int) -> None:
        """Add so many jobs, each known to be there before the next is sent."""

    def add_in_bulk(self, count: int) -> None:
        """Add so many jobs at once, the quickest way there is."""

    def add_gates(self, count: int, folder: str) -> None:
        """Add jobs that each hold a place of the worker until the gate opens."""

    def left(self) -> int:
        """Jobs that have not ended."""

    def run_one(self) -> None:
        """Add one job and wait until it is seen to have ended."""


class FlowingProducer(Producer, Protocol):
    """One that has flows."""

    def submit(self, shape: str, size: int) -> bool:
        """Submit a flow; False where such a flow cannot be said."""

    def wait(self) -> None:
        """Wait for the end of that flow."""


def seconds_of(call: Callable[..., object], *args: object) -> float:
    """How long a call takes."""
    begun = time.perf_counter()
    call(*args)
    return time.perf_counter() - begun


def answer(producer: Any, do: str, args: dict[str, Any]) -> Any:
    """Do what the harness asks for, and say how long it took."""
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
    """Answer until the harness closes the line."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        args = json.loads(line)
        print(json.dumps(answer(producer, args.pop("do"), args)), flush=True)


def run(make_producer: Callable[[str], Producer], work: Callable[[str, int], None]) -> None:
    """The command line of a contender: ``producer URL`` or ``worker URL CONCURRENCY``."""
    role, url = sys.argv[1:3]
    if role == "producer":
        serve(make_producer(url))
    else:
        work(url, int(sys.argv[3]))
