"""The server and the workers of a campaign: started, struck, and started again."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.testing.chaos.ledger import Ledger, LedgerEntry, LedgerReader
from glidemq_orchestrate.testing.chaos.strikes import VARIABLE, Act, Setup, ledger_of, struck_of
from glidemq_orchestrate.testing.chaos.worker import NOT_STARTED

STOP_SECONDS: Final = 10.0
DOWN_SECONDS: Final = 0.3
REST_SECONDS: Final = 1.5
PAUSES: Final = 3


class Stage:
    """The server and the workers, as a context manager. None of them outlives the block or this process.

    Attributes:
        surprises: The exit codes of workers that ended by themselves.
        entries: The entries of the ledger.
        strikes: How many of the entries are strikes.
        pause_seconds: The shortest duration of a pause. It is longer, up to ``longest_pause``, until another
            worker has taken over the job.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        struck_of(folder).mkdir(parents=True)
        self._wanted = workers
        self._server = EmbeddedServer(data_dir=folder / "server").start()
        self._port = int(self._server.url.rpartition(":")[2])
        self._workers: list[subprocess.Popen[bytes]] = []
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._struck: set[int] = set()
        self.pause_seconds = 0.0
        self._paused, self._resumed_at = 0, -math.inf
        self.surprises: list[int] = []
        self.ledger = Ledger(ledger_of(folder), "harness")
        self._reader = LedgerReader(ledger_of(folder))
        self.entries: list[LedgerEntry] = []
        self.strikes = 0

    def __enter__(self) -> Self:
        """Do nothing: the server has started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers and the server."""
        self.stop_workers(signal.SIGKILL)
        self._server.stop()
        self.ledger.close()

    @property
    def url(self) -> str:
        """The URL of the server; it stays the same after a kill."""
        return f"valkey://127.0.0.1:{self._port}"

    @property
    def longest_pause(self) -> float:
        """The longest duration of a pause, in seconds."""
        return PAUSES * self.pause_seconds

    @property
    def is_calm(self) -> bool:
        """Whether all paused workers have had time to finish the work in which they were paused."""
        return not self._paused and time.monotonic() >= self._resumed_at + REST_SECONDS

    def start_workers(self, setup: Setup) -> None:
        """Start the workers, and from now on restart workers that end."""
        setup.write(self.folder)
        self.pause_seconds = setup.lease_seconds * 1.5 + 1
        self._workers = [self._start() for _ in range(self._wanted)]

    def stop_workers(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the workers; none is restarted until ``start_workers``."""
        stopping, self._workers = self._workers, []
        for process in stopping:
            for each in (number, signal.SIGCONT):
                process.send_signal(each)
        for process in stopping:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            lifeline.forget(process.pid)

    def tend(self) -> None:
        """Carry out strikes, and restart dead workers. Call it often."""
        for entry in self._reader.new():
            self.entries.append(entry)
            if entry["kind"] == "strike":
                self.strikes += 1
                self._strike(entry)
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        for at, process in enumerate(self._workers):
            code = process.poll()
            if code is None:
                continue
            lifeline.forget(process.pid)
            if process.pid not in self._struck and code != NOT_STARTED:
                self.surprises.append(code)
                self.ledger.write("ended worker", worker=process.pid, code=code)
            self._workers[at] = self._start()

    def refuse_broken_workers(self) -> None:
        """Refuse workers that end without strikes.

        Raises:
            ConfigurationError: A worker has ended; the message has the last line of its log.
        """
        if self.surprises:
            log = (self.folder / "workers.log").read_text(errors="replace").strip().splitlines()
            ended = {entry["run"] for entry in self.entries if entry["kind"] == "end"}
            begun = [one for one in self.entries if one["kind"] == "begin" and one["run"] not in ended]
            at = f" while it ran {begun[0]['name']} (node {begun[0]['node']})" if begun else ""
            last = f"; the last line of its log: {log[-1]}" if log and not begun else ""
            raise ConfigurationError(
                f"a worker ended with exit code {self.surprises[0]} without any strike{at}{last}"
            )

    def _start(self) -> subprocess.Popen[bytes]:
        environment: dict[str, Any] = {**os.environ, **lifeline.mark, VARIABLE: str(self.folder)}
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "glidemq_orchestrate.testing.chaos.worker"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        lifeline.watch(process.pid)
        return process

    def _strike(self, entry: LedgerEntry) -> None:
        if entry["act"] == Act.KILL:
            self._struck.update(entry["pids"])
        elif entry["act"] == Act.PAUSE:
            self._paused += 1
            self._later(self.pause_seconds, lambda: self._resume(entry, PAUSES - 1))
        elif entry["act"] == Act.KILL_SERVER:
            self._kill_server()
        else:
            self._disconnect()

    def _resume(self, strike: LedgerEntry, pauses: int) -> None:
        """Resume what was paused; up to ``pauses`` pauses later if nobody has taken over its job."""
        if pauses and not self._is_taken_over(strike):
            self._later(self.pause_seconds, lambda: self._resume(strike, pauses - 1))
            return
        for pid in strike["pids"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused, self._resumed_at = self._paused - 1, time.monotonic()

    def _is_taken_over(self, strike: LedgerEntry) -> bool:
        job = strike["flow"], strike["node"]
        return any(
            entry["kind"] == "begin" and entry["at"] > strike["at"] and (entry["flow"], entry["node"]) == job
            for entry in self.entries
        )

    def _kill_server(self) -> None:
        if (pid := self._server.pid) is not None:
            os.kill(pid, signal.SIGKILL)
            self._server.stop()
            self._later(DOWN_SECONDS, self._start_server)

    def _start_server(self) -> None:
        self._server = EmbeddedServer(data_dir=self.folder / "server", port=self._port).start()

    def _disconnect(self) -> None:
        from redis import Redis, RedisError  # noqa: PLC0415  only when used

        with suppress(RedisError), Redis(port=self._port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))
