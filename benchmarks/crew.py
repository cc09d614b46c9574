"""The processes of a measurement: each is a role of a module, and none outlives the measurement."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self

import psutil

from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.worker.services.service import Service

ROOT: Final = Path(__file__).resolve().parent.parent
READY: Final = "ready"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0


class Member:
    """A process that has said that it is ready.

    Args:
        module: Started as ``python -m MODULE ROLE ...``; prints ``ready`` once it is.
        log: Where its other output goes.
    """

    def __init__(self, name: str, module: ModuleType, *arguments: object, log: Path) -> None:
        self.name = name
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module.__name__, *map(str, arguments)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        lifeline.watch(self.pid)
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait_ready(self) -> None:
        """Wait until it says so.

        Raises:
            RuntimeError: It ended, or took too long.
        """
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
        if not ready or self.process.stdout.readline().strip() != READY:
            raise RuntimeError(f"{self.name} did not start: {self._log.read_text()[-2_000:]}")

    def watched(self) -> psutil.Process:
        """For its memory, descriptors and threads."""
        return psutil.Process(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL for its group, and wait for its end; a repeat does nothing."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        lifeline.forget(self.pid)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> str:
        """SIGTERM, then SIGKILL if that does not help; returns what it printed since it was ready."""
        self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            output = ""
        self.kill()
        return output


class Crew:
    """Members that end with the block, however it ends.

    Args:
        module: The module of their roles.
        log: Where their output goes.
    """

    def __init__(self, module: ModuleType, log: Path) -> None:
        self._module, self._log = module, log
        self.members: list[Member] = []
        self._starting: list[Member] = []

    def __enter__(self) -> Self:
        """Nobody yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all."""
        for member in self.members:
            member.kill()

    def begin(self, name: str, role: str, *arguments: object) -> Member:
        """Start one that ``ready`` waits for."""
        member = Member(name, self._module, role, *arguments, log=self._log)
        self.members.append(member)
        self._starting.append(member)
        return member

    def start(self, name: str, role: str, *arguments: object) -> Member:
        """Start one, and wait until it and the others are ready."""
        member = self.begin(name, role, *arguments)
        self.ready()
        return member

    def ready(self) -> None:
        """Wait until all are ready."""
        while self._starting:
            self._starting.pop(0).wait_ready()


def tell_ready() -> None:
    """For a member: say that it is ready."""
    print(READY, flush=True)


def serve(service: Service) -> None:
    """For a member: serve until SIGTERM, and say when that has begun."""

    def tell() -> None:
        service.ready.wait()
        tell_ready()

    threading.Thread(target=tell, daemon=True).start()
    service.run()
