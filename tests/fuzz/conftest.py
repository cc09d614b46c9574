"""The fixtures of the server tests."""

from __future__ import annotations

from tests.server.conftest import flows, hand, queue

__all__ = ["flows", "hand", "queue"]
