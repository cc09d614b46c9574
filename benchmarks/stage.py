"""One server, and the processes of the contenders on it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

import psutil
import redis

from benchmarks.rivals import HOME, ROOT, Contender
from glidemq_orchestrate import EmbeddedServer

START_SECONDS: Final = 90.0
REPLY_SECONDS: Final = 180.0
STOP_SECONDS: Final = 10.0
WARM_UP: Final = 300


class Failed(Exception):
    """A contender did not execute a command; its output is in the log."""


@dataclass(frozen=True)
class Drained:
    """The cost of emptying the queue: wall-clock time, and CPU time of each side, in seconds."""

    jobs: int
    wall: float
    server: float
    worker: float
    handler: float | None = None


class Process:
    """A producer or worker of a contender."""

    def __init__(self, contender: Contender, role: str, url: str, *args: object) -> None:
        self.name = f"{contender.name} {role}"
        HOME.mkdir(exist_ok=True)
        self._log: IO[bytes] = (HOME / f"{contender.name}-{role}.log").open("ab")
        self._process = subprocess.Popen(
            [*contender.command, role, url, *map(str, args)],
            cwd=ROOT,
            env=os.environ | contender.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def ask(self, do: str, **args: Any) -> Any:
        """Send a command and wait for the reply.

        Raises:
            Failed: The process ended, or did not reply in time.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do} | args) + "\n")
        self._process.stdin.flush()
        return self.read(REPLY_SECONDS)

    def read(self, seconds: float) -> Any:
        """The next line of its output."""
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], seconds)
        line = out.readline() if ready else ""
        if not line:
            raise Failed(
                f"{self.name} ended or did not reply; see {HOME.name}/{self.name.replace(' ', '-')}.log"
            )
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far."""
        total = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            for one in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def is_alive(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def stop(self) -> str:
        """Stop it and its children; returns the rest of its output."""
        if self.is_alive():
            self._process.terminate()
        try:
            output, _ = self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            output = ""
        with contextlib.suppress(ProcessLookupError):  # the group is its own: see start_new_session
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        return output or ""


class Stage:
    """The server, and a producer for each contender, all for one run.

    Args:
        contenders: Installed ones.
    """

    def __init__(self, contenders: list[Contender]) -> None:
        self.contenders = contenders
        self.server = EmbeddedServer()
        self.producers: dict[str, Process] = {}

    def __enter__(self) -> Self:
        """Start all."""
        self.server.start()
        self.url = self.server.url.replace("valkey://", "redis://")
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True)
        self.client.config_set("auto-aof-rewrite-percentage", 0)  # none in the middle of a measurement
        try:
            for contender in self.contenders:
                self.producers[contender.name] = Process(contender, "producer", self.url)
            for producer in self.producers.values():
                producer.read(START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all."""
        for producer in self.producers.values():
            producer.stop()
        self.client.close()
        self.server.stop()

    def server_seconds(self) -> float:
        """CPU time of the server so far."""
        cpu = self.client.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def added(self, contender: Contender, how: str, count: int) -> float:
        """Seconds to add this many jobs."""
        producer = self.producers[contender.name]
        self.client.flushall()
        producer.ask(how, count=max(count // 10, 1))
        self.client.flushall()
        return float(producer.ask(how, count=count))

    @contextlib.contextmanager
    def worker_at_gate(
        self, contender: Contender, concurrency: int, *, with_flows: bool = False
    ) -> Iterator[tuple[Process, Path]]:
        """A warm worker whose slots are all held until a file named ``open`` is in the folder."""
        self.client.flushall()
        producer = self.producers[contender.name]
        with tempfile.TemporaryDirectory() as folder:
            producer.ask("add_in_bulk", count=max(int(WARM_UP * contender.share), 50))
            if with_flows:
                producer.ask("submit", shape="fan-in", size=101)
            producer.ask("add_gates", count=concurrency, folder=folder)
            worker = Process(contender, "worker", self.url, concurrency)
            try:
                self._until_held(worker, Path(folder), concurrency)
                yield worker, Path(folder)
            finally:
                worker.stop()

    def _until_held(self, worker: Process, folder: Path, concurrency: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while sum(1 for _ in folder.glob("held-*")) < concurrency:
            if time.monotonic() > deadline or not worker.is_alive():
                raise Failed(f"{worker.name} did not take {concurrency} jobs; see {HOME.name}/")
            time.sleep(0.02)

    def drained(self, contender: Contender, concurrency: int, count: int) -> Drained:
        """Empty a queue of this many waiting jobs with a warm worker."""
        producer = self.producers[contender.name]
        with self.worker_at_gate(contender, concurrency) as (worker, folder):
            producer.ask("add_in_bulk", count=count)
            before = self.server_seconds(), worker.cpu_seconds()
            wall = producer.ask("drain", folder=str(folder))
            after = self.server_seconds(), worker.cpu_seconds()
            output = worker.stop()
        report = json.loads(output) if output.startswith("{") else {}
        handler = report["handler_us"] * count / 1e6 if report else None
        return Drained(count, wall, after[0] - before[0], after[1] - before[1], handler)

    def round_trips(self, contender: Contender, count: int) -> list[float]:
        """Seconds from adding a job to seeing its end, one at a time on an idle queue."""
        producer = self.producers[contender.name]
        with self.worker_at_gate(contender, 1) as (_, folder):
            producer.ask("drain", folder=str(folder))
            producer.ask("run_one", count=max(count // 10, 1))
            return list(producer.ask("run_one", count=count))

    def flow(
        self, contender: Contender, shape: str, size: int, concurrency: int
    ) -> tuple[float, float] | None:
        """Seconds to submit a flow with an idle worker, and seconds until its end once the worker runs."""
        producer = self.producers[contender.name]
        with self.worker_at_gate(contender, concurrency, with_flows=True) as (_, folder):
            submitted = producer.ask("submit", shape=shape, size=size)
            if submitted is None:
                return None
            return submitted, producer.ask("wait", folder=str(folder))
