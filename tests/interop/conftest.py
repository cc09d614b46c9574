"""The Node side of the interop suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_orchestrate import Queue
from tests.node import Node


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("q", url) as made:
        yield made


@pytest.fixture
def node(redis_client: Any, queue: Queue) -> Node:
    """A Node client on a server whose libraries P has loaded."""
    queue.add("load the libraries")
    redis_client.flushall()
    return Node(redis_client)
