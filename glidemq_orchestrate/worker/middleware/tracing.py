"""OpenTelemetry spans around handlers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.middleware import Middleware, Proceed

CHECK_SECONDS: Final = 1.0


class Tracing(Middleware):
    """A span for each run, linked to where its job was added; see ``telemetry``."""

    def __init__(self) -> None:
        self._is_on, self._checked = False, float("-inf")

    def applies_to(self, execution: Execution) -> bool:
        """Whether spans are exported. Checked once a second: without a provider the check is slow."""
        if execution.started - self._checked > CHECK_SECONDS:
            self._is_on, self._checked = telemetry.is_on(), execution.started
        return self._is_on

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Run the handler within a span."""
        with _running(execution.attempts[0]):
            return await proceed()


@contextlib.contextmanager
def _running(attempt: Attempt) -> Iterator[None]:
    """A span around a handler, linked to where the job was added; an exception marks it as failed."""
    tracer = telemetry.tracer()
    if tracer is None:
        yield
        return
    with importing():
        from opentelemetry import trace  # noqa: PLC0415  an optional package
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  an optional package
            TraceContextTextMapPropagator,
        )

    links = []
    if attempt.options.trace:
        origin = TraceContextTextMapPropagator().extract({"traceparent": attempt.options.trace})
        links.append(trace.Link(trace.get_current_span(origin).get_span_context()))
    attributes: dict[str, str | int] = {
        "messaging.system": telemetry.SYSTEM,
        "messaging.operation.type": "process",
        "messaging.destination.name": attempt.queue,
        "messaging.message.id": attempt.job_id,
        "glidemq.job.name": attempt.name,
        "glidemq.attempt": attempt.attempts_made + 1,
    }
    if attempt.flow_id:
        attributes |= {"glidemq.flow.id": attempt.flow_id, "glidemq.node": attempt.node or ""}
        attributes["glidemq.flow.generation"] = attempt.generation
    with tracer.start_as_current_span(
        f"process {attempt.queue}", kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ):
        yield
