"""A proxy in front of a server that drops connections at chosen calls."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

Moment = Literal["before", "after"]


@dataclass
class Cuts:
    """Which calls lose their connection: those that hold a text, so many of them.

    ``before``: the server never sees the call. ``after``: it does, and its reply is lost.
    """

    text: bytes = b""
    moment: Moment = "before"
    left: int = 0
    made: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, text: str, moment: Moment, times: int = 1) -> None:
        with self.lock:
            self.text, self.moment, self.left, self.made = text.encode(), moment, times, 0

    def take(self, data: bytes) -> Moment | None:
        with self.lock:
            if not self.left or self.text not in data:
                return None
            self.left -= 1
            self.made += 1
            return self.moment


@contextlib.contextmanager
def cutting(url: str) -> Iterator[tuple[str, Cuts]]:
    """A URL that leads to the same server through a proxy, and what decides about its connections."""
    parts, cuts = urlsplit(url), Cuts()
    place = (parts.hostname or "", parts.port or 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, place, cuts), daemon=True)
        thread.start()
        rest = f"{parts.path}?{parts.query}" if parts.query else parts.path
        yield f"{parts.scheme}://127.0.0.1:{listener.getsockname()[1]}{rest}", cuts
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _accept(listener: socket.socket, place: tuple[str, int], cuts: Cuts) -> None:
    pumps: list[tuple[socket.socket, threading.Thread]] = []
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            pumps.append((client, threading.Thread(target=_pump, args=(client, place, cuts), daemon=True)))
            pumps[-1][1].start()
    for client, pump in pumps:
        with contextlib.suppress(OSError):  # it has closed itself
            client.shutdown(socket.SHUT_RDWR)
        pump.join(5)


def _pump(client: socket.socket, place: tuple[str, int], cuts: Cuts) -> None:
    with client, socket.create_connection(place) as server, selectors.DefaultSelector() as ready:
        ready.register(client, selectors.EVENT_READ, server)
        ready.register(server, selectors.EVENT_READ, client)
        is_deaf = False
        with contextlib.suppress(OSError):
            while True:
                for found, _ in ready.select():
                    data = found.fileobj.recv(65_536)  # type: ignore[union-attr]  # both are sockets
                    cut = cuts.take(data) if found.fileobj is client else None
                    if not data or cut == "before" or (is_deaf and found.fileobj is server):
                        return
                    is_deaf = is_deaf or cut == "after"
                    found.data.sendall(data)
