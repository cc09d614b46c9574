"""OpenTelemetry spans around handlers."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.worker.execution import Execution
from glidemq_orchestrate.worker.middleware.middleware import Middleware, Proceed

LOOK_SECONDS: Final = 1.0


class Tracing(Middleware):
    """A span for each run, linked to where its job was added; see ``telemetry``."""

    def __init__(self) -> None:
        self._is_on, self._looked = False, float("-inf")

    def applies_to(self, execution: Execution) -> bool:
        """Whether spans go anywhere. Looked at once a second: without a provider the answer is dear."""
        if execution.started - self._looked > LOOK_SECONDS:
            self._is_on, self._looked = telemetry.is_on(), execution.started
        return self._is_on

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Run the handler within a span."""
        with telemetry.running(execution.attempts[0]):
            return await proceed()
