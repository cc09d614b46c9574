"""Queues of ChasquiMQ: on the embedded Valkey, or on a Redis 8 with ``make test-chasquimq``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from glidemq_orchestrate import Handlers
from glidemq_orchestrate.chasquimq import ChasquiQueue, ChasquiWorker


@dataclass
class Raw:
    """The keys of a queue, as bytes."""

    client: Any
    queue: str

    def key(self, name: str) -> str:
        return f"{{chasqui:{self.queue}}}:{name}"

    def keys(self) -> set[str]:
        """What the queue has, without its tag."""
        found = self.client.keys(f"{{chasqui:{self.queue}}}:*")
        return {key.decode().partition("}:")[2] for key in found}

    def stream(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(self.key("stream"))]

    def add(self, fields: dict[Any, Any], key: str = "stream") -> str:
        return str(self.client.xadd(self.key(key), fields).decode())


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    from redis import Redis  # noqa: PLC0415  unit tests do without a driver

    with Redis.from_url(url.replace("valkey://", "redis://"), driver_info=None) as client:
        yield Raw(client, "images")


@pytest.fixture
def images(url: str) -> Iterator[ChasquiQueue]:
    with ChasquiQueue("images", url) as queue:
        yield queue


class Serve(Protocol):
    def __call__(self, *functions: Any, **options: Any) -> ChasquiWorker: ...


@pytest.fixture
def serve(url: str) -> Iterator[Serve]:
    """Starts workers with these handlers."""
    with ExitStack() as stack:

        def start(*functions: Any, **options: Any) -> ChasquiWorker:
            handlers = options.pop("handlers", None) or Handlers()
            for function in functions:
                handlers.handler(function)
            worker = ChasquiWorker("images", url, handlers=handlers, lease=options.pop("lease", 1), **options)
            return stack.enter_context(worker.running())

        yield start
