"""Chaos tests for flows: kill workers and the server while a flow runs, and report which steps are unsafe.

    >>> from glidemq_orchestrate.testing.chaos import run_chaos
    >>> report = run_chaos(FlowSpec.from_file("nightly.yaml"), app="steps", runs=100)  # doctest: +SKIP
    >>> report.assert_safe()  # doctest: +SKIP

The command line does the same: ``glidemq chaos run nightly.yaml --app steps``. Handlers may import
``effect``, which needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.testing.chaos.campaign import run_chaos
    from glidemq_orchestrate.testing.chaos.effects import effect
    from glidemq_orchestrate.testing.chaos.report import ChaosFinding, ChaosReport, FindingKind, StepReport
    from glidemq_orchestrate.testing.chaos.strikes import Act, Moment

__all__ = [
    "Act",
    "ChaosFinding",
    "ChaosReport",
    "FindingKind",
    "Moment",
    "StepReport",
    "effect",
    "run_chaos",
]

_PUBLIC = {
    "campaign": ("run_chaos",),
    "effects": ("effect",),
    "report": ("ChaosReport", "ChaosFinding", "FindingKind", "StepReport"),
    "strikes": ("Act", "Moment"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
