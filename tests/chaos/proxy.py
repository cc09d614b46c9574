"""A TCP proxy that cuts connections between any two bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Final, Literal

Direction = Literal["request", "reply"]
CHUNK: Final = 65_536


class Proxy:
    """Leads to a server, in a thread of its own.

    Args:
        port: Where the server listens, on this machine.
    """

    def __init__(self, port: int) -> None:
        self.target, self.port = port, 0
        self._cuts: dict[Direction, deque[int]] = {"request": deque(), "reply": deque()}
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()

    def cut(self, direction: Direction, after: int) -> None:
        """Cut the connection that is used next in this direction, once so many bytes have passed."""
        self._cuts[direction].append(after)

    def close(self) -> None:
        """Cut everything and stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._link, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                there = await asyncio.open_connection("127.0.0.1", self.target)
            except OSError:
                writer.transport.abort()
                return
            pumps = [
                asyncio.create_task(self._pump(reader, there[1], "request")),
                asyncio.create_task(self._pump(there[0], writer, "reply")),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                for one in (writer, there[1]):
                    one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        cuts, left = self._cuts[direction], -1
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if left < 0 and cuts:
                    left = cuts.popleft()
                if 0 <= left <= len(data):
                    writer.write(data[:left])
                    await asyncio.sleep(0)  # the bytes before the cut leave first
                    return
                left -= len(data) if left > 0 else 0
                writer.write(data)
                await writer.drain()
