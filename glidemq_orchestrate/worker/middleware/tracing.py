"""OpenTelemetry spans around handlers."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.worker.execution import Execution
from glidemq_orchestrate.worker.middleware.middleware import Middleware, Proceed

CHECK_SECONDS: Final = 1.0


class Tracing(Middleware):
    """A span for each run, linked to where its job was added; see ``telemetry``."""

    def __init__(self) -> None:
        self._is_on, self._checked = False, float("-inf")

    def applies_to(self, execution: Execution) -> bool:
        """Whether spans are exported. Checked once a second: without a provider the check is expensive."""
        if execution.started - self._checked > CHECK_SECONDS:
            self._is_on, self._checked = telemetry.is_on(), execution.started
        return self._is_on

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Run the handler within a span."""
        with telemetry.running(execution.attempts[0]):
            return await proceed()
