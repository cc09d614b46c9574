"""Chaos tests for flows: kill workers and the server while a flow runs, and report which steps are unsafe.

    >>> from glidemq_orchestrate.testing.chaos import run_chaos
    >>> report = run_chaos(FlowSpec.from_file("nightly.yaml"), app="steps", runs=100)  # doctest: +SKIP
    >>> report.assert_safe()  # doctest: +SKIP

The command line does the same: ``glidemq chaos run nightly.yaml --app steps``. Handlers may import
``effect``, which needs no extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glidemq_orchestrate.testing.chaos.campaign import run_chaos
    from glidemq_orchestrate.testing.chaos.effects import effect
    from glidemq_orchestrate.testing.chaos.report import ChaosReport, Finding, FindingKind, StepReport
    from glidemq_orchestrate.testing.chaos.strikes import Act, Moment

__all__ = [
    "Act",
    "ChaosReport",
    "Finding",
    "FindingKind",
    "Moment",
    "StepReport",
    "effect",
    "run_chaos",
]

_HOMES = {
    "Act": "strikes",
    "ChaosReport": "report",
    "Finding": "report",
    "FindingKind": "report",
    "Moment": "strikes",
    "StepReport": "report",
    "effect": "effects",
    "run_chaos": "campaign",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
