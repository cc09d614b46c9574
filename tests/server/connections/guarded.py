"""A server with a user who has the rights of a rule and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.server.lua.servers import load_libraries, redis7_binary, running, valkey_binary

SECRET = "hunter2"
KINDS = ("valkey", "redis 7")


@dataclass
class Guarded:
    """The server, and a client of its administrator."""

    port: int
    admin: Any

    @property
    def url(self) -> str:
        """With the user ``worker``."""
        return self.url_of("worker")

    def url_of(self, name: str) -> str:
        return f"valkey://{name}:{SECRET}@127.0.0.1:{self.port}"

    def set_user(self, name: str, rule: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", name, "reset", "on", f">{SECRET}", *rule.split())

    def denied(self) -> list[Any]:
        """What was refused since the last reset of the log."""
        return [entry["object"] for entry in self.admin.acl_log()]


@contextmanager
def running_guarded(kind: str, directory: Path) -> Iterator[Guarded]:
    binary = valkey_binary() if kind == "valkey" else redis7_binary(directory)
    with running(binary, directory) as port, redis.Redis(port=port, decode_responses=True) as admin:
        load_libraries(port)
        yield Guarded(port, admin)
