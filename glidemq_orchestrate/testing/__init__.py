"""For the tests of users: the pytest plugin, and chaos tests for flows.

``pytest`` loads ``plugin``; its names are available here too. ``chaos`` needs no pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glidemq_orchestrate.testing.plugin import (
        Eventually,
        RunningWorker,
        RunWorker,
        eventually,
        glidemq_server,
        glidemq_url,
        own_database,
        run_worker,
        start_workers,
    )

__all__ = [
    "Eventually",
    "RunWorker",
    "RunningWorker",
    "eventually",
    "glidemq_server",
    "glidemq_url",
    "own_database",
    "run_worker",
    "start_workers",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("glidemq_orchestrate.testing.plugin"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
