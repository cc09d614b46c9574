"""The program that renews the leases of a worker that is blocked. ``Renewer`` starts it.

A handler that blocks the worker's loop, or holds the interpreter, must not cost the other jobs their leases.
So this is a separate process. While the worker renews its own leases, the process only waits, and has
imported nothing beyond the interpreter.

It reads its standard input, which only the worker holds open. The first line has the settings, with the
secrets of the connection. The worker sends a further line after each renewal: the milliseconds for which it
may be silent. If no line arrives in that time, and the worker is alive and not stopped, the process renews
the leases, for a bounded time. It ends when the worker ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # as in typing, which would be an import
if TYPE_CHECKING:
    from glidemq_orchestrate.worker.renewing import LeaseRenewal

MAX_BYTES = 1 << 16
CHECK_SECONDS = 0.2
HURRIED_SECONDS = 3.0
"""Below this many seconds of silence, there is no time for imports when a renewal is due."""


def main(owner: int, patience: float, limit: float, *, is_hurried: bool) -> None:
    """Renew the leases of the worker after more than ``patience`` of silence; return when it ends.

    Args:
        owner: The process of the worker.
        patience: Seconds of silence.
        limit: Seconds of silence after which the leases are no longer renewed.
        is_hurried: Leases are so short that imports and the connection must be made in advance.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the worker handles the signal, and ends this process
    settings, signs = _first_line(owner)
    renewed_at, patience = time.monotonic(), _patience(signs, patience)
    renewal, is_over = None, False
    if is_hurried:
        renewal = _renewal(settings, owner)
        renewal.renew(0.0)  # connects
    os.write(1, b".")
    while os.getppid() == owner:
        if select.select([0], [], [], min(patience / 2, 1.0))[0]:
            if not (signs := os.read(0, MAX_BYTES)):
                return
            renewed_at, patience = time.monotonic(), _patience(signs, patience)
            if renewal is not None:
                renewal.rest(is_over)
            elif patience < HURRIED_SECONDS:
                renewal = _renewal(settings, owner)
            is_over = False
            continue
        silent = time.monotonic() - renewed_at
        if silent < patience or is_over or is_stopped(owner):
            continue
        renewal = renewal or _renewal(settings, owner)
        is_over = silent >= limit
        if is_over:
            renewal.give_up(silent)
        else:
            renewal.renew(silent)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, for example by SIGSTOP: then its leases must end."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib would be an import
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"Z", b"X")
    except (OSError, IndexError):
        return False


def _patience(signs: bytes, before: float) -> float:
    """The seconds in the last whole line."""
    *lines, _ = signs.split(b"\n")
    return int(lines[-1]) / 1000 if lines and lines[-1].isdigit() else before


def _first_line(owner: int) -> tuple[bytes, bytes]:
    line = b""
    while b"\n" not in line:
        more = os.read(0, MAX_BYTES)
        if not more or os.getppid() != owner:
            sys.exit()
        line += more
    settings, _, signs = line.partition(b"\n")
    return settings, signs


def _renewal(settings: bytes, owner: int) -> LeaseRenewal:
    """Create the ``LeaseRenewal``; its imports are made here."""
    import json  # noqa: PLC0415
    import threading  # noqa: PLC0415

    def watch() -> None:
        while os.getppid() == owner:  # also while a call waits for the server
            time.sleep(CHECK_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    fields = json.loads(settings)
    sys.path[:] = fields.pop("path")
    from glidemq_orchestrate.worker.renewing import LeaseRenewal  # noqa: PLC0415

    return LeaseRenewal(**fields)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), is_hurried=sys.argv[4] == "1")
