"""A client in Node beside ours."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Queue
from tests.node import PlainNode


@pytest.fixture
def node(queue: Queue, redis_client: Any) -> PlainNode:
    """The workers of another client, by raw calls; the libraries are loaded."""
    queue.is_paused()
    return PlainNode(redis_client)
