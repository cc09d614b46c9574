"""OpenTelemetry spans: one where a job is added, one where it runs, linked by what the job carries.

The package ``opentelemetry-api`` is optional; without it, or without a tracer provider, nothing here costs
more than a check. Names and attributes follow the semantic conventions for messaging.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.importing import importing
from glidemq_orchestrate.jobs.attempt import Attempt

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SYSTEM = "glide-mq"


@cache
def _api() -> Any:
    try:
        with importing():
            from opentelemetry import trace  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        return None
    return trace


def _tracer() -> Tracer | None:
    """The tracer, when a provider is set."""
    trace = _api()
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    tracer: Tracer = trace.get_tracer("glidemq_orchestrate")
    return tracer


def is_on() -> bool:
    """Whether spans go anywhere."""
    return _tracer() is not None


@contextlib.contextmanager
def adding(queue: str, name: str, count: int = 1) -> Iterator[str]:
    """A span around adding jobs; yields the W3C ``traceparent`` for them to carry, '' without tracing."""
    tracer = _tracer()
    if tracer is None:
        yield ""
        return
    with importing():
        from opentelemetry.trace import SpanKind  # noqa: PLC0415  an optional package
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  an optional package
            TraceContextTextMapPropagator,
        )

    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": count,
    }
    with tracer.start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
        span.set_attribute("glidemq.job.name", name)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier.get("traceparent", "")


@contextlib.contextmanager
def running(attempt: Attempt) -> Iterator[None]:
    """A span around a handler, linked to where the job was added; an exception marks it as failed."""
    tracer = _tracer()
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
        "messaging.system": SYSTEM,
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
