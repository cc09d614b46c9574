"""Handlers in separate processes. A timeout or a cancel kills the process and all processes that it started.

Each process has its own socket to the worker and shares nothing with the others, so a kill never affects
them. See ``handler_process`` for the frames.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Final

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.worker import handler_process as child
from glidemq_orchestrate.worker.handlers.tracebacks import pack, unpack

TRIES: Final = 3
MAX_THREADS: Final = 8
END_SECONDS: Final = 5.0
BY_ITSELF_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.01

Forward = Callable[[str, str, str], Awaitable[None]]
"""Called with a token, ``progress``, ``log``, ``message`` or ``check``, and a text; awaited each time."""

_SENT: Final = {child.PROGRESS: "progress", child.LOG: "log", child.MESSAGE: "message"}


class ProcessExpired(Exception):
    """The process of a handler ended before the handler returned."""


class _NotStarted(Exception):
    """The process ended before the job reached it."""


class Processes:
    """Worker processes, started on demand and reused. None of them outlives this process.

    Args:
        send: Receives the messages of the handlers.
    """

    def __init__(self, send: Forward) -> None:
        self._send = send
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._owner = os.getpid()
        # Not the loop's threads: handlers may occupy them or shut them down.
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="glidemq-processes")
        atexit.register(self.close)  # before multiprocessing waits for its children

    async def run(self, function: Callable[..., Any], token: str, job: dict[str, Any]) -> JsonLike:
        """Run a handler. Cancelling the call kills its process and all processes that it started.

        Raises:
            Exception: The handler raised it, or its process died. Never another ``BaseException``.
        """
        for tries_left in reversed(range(TRIES)):
            process = await self._take()
            try:
                return await process.run(function, job, lambda kind, text: self._send(token, kind, text))
            except _NotStarted as exc:
                if not tries_left:
                    raise ProcessExpired(f"{await process.exit_report()}, before the job reached it") from exc
            finally:
                if process.is_idle:
                    self._idle.append(process)
                else:
                    self._all.discard(process)
                    process.kill()
                    process.reap()
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Kill the remaining processes and wait for their end. Does nothing in a forked child."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        left, self._all, self._idle = list(self._all), set(), []
        for process in left:
            process.kill()
        for process in left:
            process.join()
        self._threads.shutdown()

    async def _take(self) -> _Process:
        """An idle process that is still usable, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.is_usable:
                return process
            self._all.discard(process)
            process.reap()  # not killed: it may have ended long ago, and its pid may have been reused
        process = _Process(self._threads)
        self._all.add(process)
        try:
            await process.start()
        except BaseException:
            self._all.discard(process)
            raise
        return process


class _Process:
    """One process, and the connection to it."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.is_idle, self._threads = False, threads
        # Not fork: copied locks of other threads would never be released. Nor the fork server: the exit codes
        # of its children are unknown here.
        context = multiprocessing.get_context("spawn")
        self._sock, self._child_socket = socket.socketpair()
        self._sock.setblocking(False)
        self._process: BaseProcess = context.Process(
            target=child.serve, args=(self._child_socket,), name="glidemq-handler"
        )

    @property
    def is_usable(self) -> bool:
        """Whether it can take a job. An idle process sends nothing, so readable data means its end."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def start(self) -> None:
        starting = asyncio.get_running_loop().run_in_executor(
            self._threads, _start, self._process, self._child_socket
        )
        try:
            await asyncio.shield(starting)
        except BaseException:
            self._sock.close()  # this ends the process as soon as it has started
            starting.add_done_callback(lambda _: self.reap())
            raise

    async def run(
        self, function: Callable[..., Any], job: dict[str, Any], send: Callable[[str, str], Awaitable[None]]
    ) -> JsonLike:
        self.is_idle, has_started = False, False
        task = pickle.dumps((function, job))
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._sock, child.HEAD.pack(child.TASK, len(task)) + task)
            while True:
                kind, body = await self._receive()
                if kind == child.STARTED:
                    has_started = True
                elif kind in _SENT:
                    await send(_SENT[kind], body.decode())
                elif kind == child.CHECK:
                    reply = await _checked(send)
                    await loop.sock_sendall(self._sock, child.HEAD.pack(child.CHECK, len(reply)) + reply)
                else:
                    break
        except (OSError, EOFError) as exc:
            if not has_started:
                raise _NotStarted from exc
            raise ProcessExpired(await self.exit_report()) from exc
        result = unpack(body) if kind == child.RAISED else json.loads(body)
        self.is_idle = True
        if isinstance(result, Exception):
            raise result
        value: JsonLike = result
        return value

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        process = self._process
        if process.pid is not None:
            with suppress(OSError):  # its session does not exist yet, or is empty
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()

    def reap(self) -> None:
        """Wait for its end in the background."""
        try:
            self._threads.submit(self.join)
        except RuntimeError:  # the pool is shut down
            self.join()

    def join(self) -> None:
        """Wait for its end."""
        self._sock.close()
        process = self._process
        if process.pid is not None:
            process.join(END_SECONDS)
            lifeline.forget(process.pid)

    async def _receive(self) -> tuple[bytes, bytes]:
        kind, size = child.HEAD.unpack(await self._read(child.HEAD.size))
        if kind not in child.KINDS or size > child.MAX_FRAME:
            raise EOFError("the process sent an invalid frame")
        return kind, await self._read(size)

    async def _read(self, size: int) -> bytes:
        loop, body = asyncio.get_running_loop(), bytearray()
        while len(body) < size:
            more = await loop.sock_recv(self._sock, min(size - len(body), 1 << 18))
            if not more:
                raise EOFError("the process has ended")
            body += more
        return bytes(body)

    async def exit_report(self) -> str:
        """A description of how it ended."""
        process = self._process
        until = time.monotonic() + BY_ITSELF_SECONDS
        # Not join: it would block if the process had written to the wrong file.
        while (code := process.exitcode) is None and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        if code is None:
            return "the handler's process closed the connection to its worker"
        if code < 0:
            return f"the handler's process was ended by {_name_of(-code)}"
        return f"the handler's process ended with exit code {code}"


async def _checked(send: Callable[[str, str], Awaitable[None]]) -> bytes:
    """The reply to a check: the error, packed; empty if the attempt owns its job."""
    try:
        await send("check", "")
    except GlideMQError as exc:
        return pack(exc)
    return b""


def _start(process: BaseProcess, child_socket: socket.socket) -> None:
    with child_socket:
        process.start()
    if process.pid is not None:
        lifeline.watch(process.pid)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
