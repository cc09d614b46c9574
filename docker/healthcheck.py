# ruff: noqa: INP001  programs, not a package
"""Health of a worker's container: each queue of the worker lists it as alive. Exit code 0 or 1.

The queues are the arguments or, without any, those of the worker that is the container's first process.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.keys import DEFAULT_PREFIX, QueueKeys
from glidemq_orchestrate.settings import ConnectionSettings


def options(command: Sequence[str], name: str) -> list[str]:
    """The values of an option of a command line, written ``--name value`` or ``--name=value``."""
    apart = [value for flag, value in pairwise(command) if flag == name]
    joined = [word.removeprefix(f"{name}=") for word in command if word.startswith(f"{name}=")]
    return apart + joined


def serves(client: Any, keys: QueueKeys, host: str) -> bool:
    """Whether a live worker of this host reads the queue."""
    for worker in client.zrangebyscore(keys.workers(), int(time.time() * 1000), "+inf"):
        text = client.get(keys.worker(worker))
        if text and json.loads(text).get("addr") == host:
            return True
    return False


def unserved(queues: Sequence[str], prefix: str, url: str | None) -> list[str]:
    """The queues that no live worker of this host reads."""
    settings = ConnectionSettings.resolve(url, prefix=prefix)
    with Redis.from_url(settings.driver_url, decode_responses=True, socket_timeout=5) as client:
        host = socket.gethostname()
        return [queue for queue in queues if not serves(client, QueueKeys(prefix, queue), host)]


def main(arguments: Sequence[str]) -> int:
    """Say what is wrong, if anything."""
    command = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    queues = list(arguments) or options(command, "--queue")
    prefix = [DEFAULT_PREFIX, *options(command, "--prefix")][-1]
    url = [None, *options(command, "--url")][-1]
    if not queues:
        wrong = "no queue: name one, or run a worker as the container's first process"
    else:
        try:
            missing = unserved(queues, prefix, url)
        except (ConfigurationError, RedisError) as exc:
            wrong = f"{type(exc).__name__}: the server cannot be asked"
        else:
            wrong = f"no live worker here for {', '.join(missing)}" if missing else ""
    sys.stdout.write(f"{wrong or 'serves ' + ', '.join(queues)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
