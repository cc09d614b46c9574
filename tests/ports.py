"""Free ports for the servers of tests."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ports of outgoing connections, of which tests open thousands: one would take the port before its
# server does.
PORTS: Final = range(12_000, 32_000)


def free_port() -> int:
    """A port on which nothing listens."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
