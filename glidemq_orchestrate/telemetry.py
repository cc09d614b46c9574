"""OpenTelemetry: the tracer, and the span for adding jobs, to which the span of each run is linked.

The package ``opentelemetry-api`` is optional. Without it or without a tracer provider, each function costs no
more than a check. Names and attributes follow the semantic conventions for messaging.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.foundation.importing import importing

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


def tracer() -> Tracer | None:
    """The tracer; None unless a provider is set."""
    trace = _api()
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    found: Tracer = trace.get_tracer("glidemq_orchestrate")
    return found


def is_on() -> bool:
    """Whether spans are recorded."""
    return tracer() is not None


@contextlib.contextmanager
def adding(queue: str, name: str, count: int = 1) -> Iterator[str]:
    """A span around adding jobs; yields the W3C ``traceparent`` for the jobs, '' without tracing."""
    found = tracer()
    if found is None:
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
    with found.start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
        span.set_attribute("glidemq.job.name", name)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier.get("traceparent", "")
