"""For the tests of users: the pytest plugin, and chaos tests for flows.

``pytest`` loads ``plugin``; its names are available here too. ``chaos`` needs no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

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

__getattr__ = _on_first_use(__name__, dict.fromkeys(__all__, f"{__name__}.plugin"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
