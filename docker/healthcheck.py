# ruff: noqa: INP001  programs, not a package
"""Health check of a worker container: each queue of the worker lists it as alive. Exit code 0 or 1.

The queues are the arguments or, without any, those of the worker that is the container's first process.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from glidemq_orchestrate import Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


def options(command: Sequence[str], name: str) -> list[str]:
    """The values of an option of a command line, written ``--name value`` or ``--name=value``."""
    apart = [value for flag, value in pairwise(command) if flag == name]
    joined = [word.removeprefix(f"{name}=") for word in command if word.startswith(f"{name}=")]
    return apart + joined


def unserved(queues: Sequence[str], prefix: str, url: str | None) -> list[str]:
    """The queues that no live worker of this host reads."""
    host, found = socket.gethostname(), []
    for name in queues:
        with Queue(name, url, prefix=prefix) as queue:
            if not any(worker.host == host for worker in queue.workers()):
                found.append(name)
    return found


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong, if anything; returns the exit code."""
    command = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    queues = list(arguments) or options(command, "--queue")
    prefix = [DEFAULT_PREFIX, *options(command, "--prefix")][-1]
    url = [None, *options(command, "--url")][-1]
    if not queues:
        wrong = "no queue: pass one, or run a worker as the container's first process"
    else:
        try:
            missing = unserved(queues, prefix, url)
        except GlideMQError as exc:
            wrong = f"{type(exc).__name__}: the server cannot be reached"
        else:
            wrong = f"no live worker here for {', '.join(missing)}" if missing else ""
    sys.stdout.write(f"{wrong or 'serves ' + ', '.join(queues)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
