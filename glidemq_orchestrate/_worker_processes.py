"""Handlers in processes of their own, which a timeout or a cancel kills.

A process gets the job as JSON and answers with the JSON of the result. What it says meanwhile (progress, log
lines) comes as datagrams on a socket: a killed process can leave no lock behind.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate.codec import JsonLike, encode
from glidemq_orchestrate.errors import ConfigurationError, PayloadTooLarge
from glidemq_orchestrate.handler import Cancelled, Context

MOST_BYTES: Final = 100_000

Told = Callable[[str, str, str], None]
"""Called with token, ``progress`` or ``log``, and the text."""


class Processes:
    """Worker processes, started when the first job needs one.

    Args:
        most: How many jobs run at the same time.
        told: Gets what the handlers say.

    Raises:
        ConfigurationError: The package pebble, which runs the processes, is not installed.
    """

    def __init__(self, most: int, told: Told) -> None:
        try:
            from pebble import ProcessPool  # noqa: PLC0415  only workers with such handlers need it
        except ModuleNotFoundError as exc:
            raise ConfigurationError(
                "handlers with process=True need pebble: pip install 'glidemq-orchestrate[process]'"
            ) from exc
        self._told = told
        self._folder = tempfile.TemporaryDirectory(prefix="glidemq-", ignore_cleanup_errors=True)
        self._path = str(Path(self._folder.name) / "said")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._path)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self.hear)
        # Not fork: this process has threads, and a copy of their locks would never be released.
        self._pool = ProcessPool(max_workers=most, context=multiprocessing.get_context("forkserver"))

    async def run(self, function: Callable[..., Any], token: str, job: dict[str, Any]) -> JsonLike:
        """Run a handler; cancelling this kills its process.

        Raises:
            Exception: What the handler raised, or that its process died.
        """
        future = self._pool.schedule(_run, args=(function, self._path, token, job))
        try:
            text = await asyncio.wrap_future(future)
        finally:
            self.hear()
        value: JsonLike = json.loads(text)
        return value

    def hear(self) -> None:
        """Take what has been said up to now."""
        while True:
            try:
                token, kind, text = json.loads(self._socket.recv(MOST_BYTES * 2))
            except OSError:
                return
            self._told(token, kind, text)

    def close(self) -> None:
        """Kill what is left."""
        self._loop.remove_reader(self._socket)
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join(timeout=5)
        self._socket.close()
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class _Voice:
    """How a handler in another process speaks to its worker."""

    path: str
    token: str

    def say(self, kind: str, text: str) -> None:
        message = json.dumps([self.token, kind, text]).encode()
        if len(message) > MOST_BYTES:
            raise PayloadTooLarge(
                f"{kind} from a process is {len(message):,} bytes; the limit is {MOST_BYTES:,}", where=kind
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(self.path)
            sock.sendall(message)


def _run(function: Callable[[Context], JsonLike], path: str, token: str, job: dict[str, Any]) -> str:
    """In the other process: run the handler."""
    voice = _Voice(path, token)

    def progress(value: JsonLike) -> None:
        voice.say("progress", encode(value, where=f"progress of job {job['name']}"))

    context = Context(
        **job, progress=progress, log=lambda line: voice.say("log", line), cancelled=Cancelled()
    )
    return encode(function(context), where=f"result of job {job['name']}")
