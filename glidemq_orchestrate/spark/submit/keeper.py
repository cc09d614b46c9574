"""The keeper of a driver: a process that starts it and stays with it, even if the worker is killed.

The driver runs while a worker holds its folder. When no worker has held it for ``patience`` seconds, the
keeper ends the driver, so that none is left behind. The keeper reads the output of the driver, so the driver
never blocks on it. When the driver has ended, the keeper ends everything that it has started, and waits
equally long for a worker that takes the exit code. If the keeper itself is killed, its guard ends the driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from glidemq_orchestrate.lifeline import guard
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.spark.setup.jvm import Scratch, write_properties
from glidemq_orchestrate.spark.submit.driver_folder import DriverFolder, LineWriter

TAG_VARIABLE: Final = "GLIDEMQ_SPARK_TAG"
"""The tag of a job's drivers, the same for each attempt: all their child processes inherit it."""
MARK_VARIABLE: Final = "GLIDEMQ_SPARK_DRIVER"
"""The name of the folder of one driver: it marks the processes of this driver, and no others."""
RESULT_VARIABLE: Final = "GLIDEMQ_RESULT"
GRACE_SECONDS: Final = 10.0
"""How long a driver may take to end before it is killed."""
POLL_SECONDS: Final = 0.25
NOT_STARTED: Final = 126
"""The exit code of a shell for a program that cannot be started."""
MAX_BYTES: Final = 1 << 16
"""Maximum length of a line; a longer one is split."""


def main() -> None:
    """Keep one driver; standard input has the order as JSON."""
    Keeper(json.loads(sys.stdin.read())).run()


class Keeper:
    """Keeps one driver.

    Args:
        order: ``folder``; ``patience`` in seconds; ``conf``, its settings; the ``command`` before and the
            ``arguments`` after the file with the settings.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._folder = DriverFolder(Path(order["folder"]))
        self._patience = float(order["patience"])
        self._command: Sequence[str] = order["command"]
        self._arguments: Sequence[str] = order["arguments"]
        self._conf: Mapping[str, str] = order["conf"]

    def run(self) -> None:
        """Run until the driver has ended and its worker has the exit code, or until no worker came."""
        if not self._folder.lock("keeper"):
            return
        # Processes that are started from here on do not belong to the driver, and are not ended with it.
        environment = {**os.environ, RESULT_VARIABLE: str(self._folder.result)}
        for name in (TAG_VARIABLE, MARK_VARIABLE):
            os.environ.pop(name, None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        code = self._run_driver({**environment, **lifeline.mark})
        if code is None:
            self._folder.remove()
            return
        self._folder.end(code)
        self._wait_until(lambda: not self._folder.path.exists())
        self._folder.remove()

    def _run_driver(self, environment: Mapping[str, str]) -> int | None:
        """Run the driver to its end; returns its exit code, or None if no worker came."""
        scratch = Scratch(self._conf)
        lines = LineWriter(self._folder.path)
        process: subprocess.Popen[bytes] | None = None
        readers: list[threading.Thread] = []
        try:
            file = write_properties(self._conf, scratch.folder)
            process = subprocess.Popen(  # noqa: S603  spark-submit, with a program that the worker allows
                [*self._command, "--properties-file", str(file), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, **scratch.environment()},
                start_new_session=True,
            )
            lifeline.watch(process.pid, grace=GRACE_SECONDS)
            for stream, is_log in ((process.stdout, False), (process.stderr, True)):
                readers.append(threading.Thread(target=_read, args=(stream, lines, is_log), daemon=True))
                readers[-1].start()
            ended = process
            if not self._wait_until(lambda: ended.poll() is not None):
                return None
        except (OSError, ValueError) as exc:  # a NUL character, for example
            why = exc.strerror if isinstance(exc, OSError) else f"{exc} in its arguments"
            lines.write(f"spark-submit cannot be started: {why}".encode(), is_log=True)
            return NOT_STARTED
        finally:
            self._end(process)
            for reader in readers:
                reader.join()
            lines.close()
            scratch.close()
        return process.wait()

    def _wait_until(self, is_over: Callable[[], bool]) -> bool:
        """Wait for a condition; false if no worker came within the patience, or the folder was removed."""
        seen = time.monotonic()
        while not is_over():
            if not self._folder.path.exists():
                return False
            if self._folder.is_locked("worker"):
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience and self._folder.lock("worker"):
                return False  # from here on no worker takes it over
            time.sleep(POLL_SECONDS)
        return True

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        """End the driver and everything that it has started."""
        is_running = process is not None and process.poll() is None
        end_marked(next(iter(lifeline.mark)), "1", process.pid if process and is_running else None)
        if process is not None:
            process.wait()
            lifeline.forget(process.pid)


def end_marked(variable: str, value: str, pid: int | None = None) -> bool:
    """End every process on this machine with this variable in its environment; returns whether there was one.

    Also ends the process ``pid`` and its children where environments cannot be read.
    """
    mark, spared, table = f"{variable}={value}".encode(), {0, 1, os.getpid()}, guard.processes()
    roots = (
        {pid: guard.Watched(table[pid].started, GRACE_SECONDS)} if pid is not None and pid in table else {}
    )
    if found := guard.left(roots, mark, spared):
        watched = {one: guard.Watched(entry.started, GRACE_SECONDS) for one, entry in found.items()}
        guard.end(watched, mark, spared, 0.0)
    return bool(found)


def _read(stream: IO[bytes], lines: LineWriter, is_log: bool) -> None:  # noqa: FBT001  of a thread
    for line in iter(lambda: stream.readline(MAX_BYTES), b""):
        lines.write(line.rstrip(b"\n"), is_log=is_log)
