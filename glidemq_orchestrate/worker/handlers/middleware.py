"""Middleware around the call of a handler: the interface, hooks, the time limit, and tracing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from glidemq_orchestrate import telemetry
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.log import about
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.tasks import JobTask

logger = logging.getLogger("glidemq_orchestrate.worker")
CHECK_SECONDS: Final = 1.0

Proceed: TypeAlias = Callable[[], Awaitable[Any]]
"""Calls the handler through the inner middleware."""


class Middleware:
    """Code around the calls of handlers; the base class does nothing. Override what you need.

    In ``Worker(middleware=[first, second])`` the first is the outermost. The time limit of a job applies
    inside all of them, so their own time is not limited.

    Every method is called on the worker's loop, for jobs of all queues: do not block.

    Example:
        >>> class Slow(Middleware):
        ...     async def around(self, execution, proceed):
        ...         begun = time.monotonic()
        ...         try:
        ...             return await proceed()
        ...         finally:
        ...             if time.monotonic() - begun > 60:
        ...                 print(f"{execution.contexts[0].name} took more than a minute")
    """

    def applies_to(self, execution: Execution) -> bool:  # noqa: ARG002  for subclasses
        """Whether ``around`` is called for an execution; called before each."""
        return True

    async def around(self, execution: Execution, proceed: Proceed) -> Any:  # noqa: ARG002  for subclasses
        """Call the handler with ``await proceed()``, and return its result, or another result.

        An exception here counts as raised by the handler, including ``RetryLater``, ``Skip`` and
        ``Unrecoverable``. Without ``proceed()`` the handler does not run, and the value returned here is the
        result. If the job is revoked or has lost its lease, ``asyncio.CancelledError`` is raised here: do not
        catch it.

        Args:
            execution: Its ``contexts`` are the handler's arguments: one, or several for a batch handler.
            proceed: Calls the handler. Await it at most once.
        """
        return await proceed()

    def on_event(self, event: JobEvent) -> None:
        """Handle an event of a job; see ``JobEvent``. An exception here is logged and changes nothing."""

    @property
    def receives_events(self) -> bool:
        """Whether ``on_event`` needs events now; no events are created if no middleware needs them."""
        return True


def inside_out(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The middleware that overrides ``around``, innermost first."""
    return tuple(one for one in reversed(middleware) if type(one).around is not Middleware.around)


def wrap(
    around: Sequence[Middleware], execution: Execution, call: Callable[..., Awaitable[Any]], *given: Any
) -> Awaitable[Any]:
    """The call wrapped in all middleware that applies, to be awaited; ``around``: see ``inside_out``."""
    proceed: Proceed | None = None
    for one in around:
        if one.applies_to(execution):
            proceed = functools.partial(one.around, execution, proceed or functools.partial(call, *given))
    return call(*given) if proceed is None else proceed()


def check_middleware(given: Iterable[object]) -> tuple[Middleware, ...]:
    """The middleware of a user, checked.

    Raises:
        ConfigurationError: It is not a list, an item is not an instance of ``Middleware``, ``around`` is
            not asynchronous, or ``on_event`` is.
    """
    if not isinstance(given, Iterable):
        raise ConfigurationError(
            f"middleware must be a list of instances of Middleware, got {described(given)}"
        )
    checked: list[Middleware] = []
    for one in given:
        if not isinstance(one, Middleware):
            raise ConfigurationError(f"middleware must be instances of Middleware, got {described(one)}")
        if not inspect.iscoroutinefunction(one.around):
            raise ConfigurationError(f"{type(one).__name__}.around must be an async method")
        if inspect.iscoroutinefunction(one.on_event):
            raise ConfigurationError(
                f"{type(one).__name__}.on_event must not be async: it would never be awaited"
            )
        checked.append(one)
    return tuple(checked)


@dataclass(slots=True, eq=False)
class Execution:
    """A handler running for one job or, in a batch, for several.

    Attributes:
        attempts: The jobs, each with ``queue``, ``job_id``, ``name``, ``attempts_made`` (before this one),
            ``flow_id``, ``node`` and ``options``. Do not change them.
        started: When it began, by the clock of the worker's loop.
        contexts: The arguments of the handler: one for each job.
        stopped: The jobs that must stop: True if the job was revoked, False if it lost its lease.
        task: The task in which it runs.
        thread: The native id of its thread, if the handler is a plain function.
        used: The processor time that it used in that thread, in seconds; None until it has returned.
        has_ended: Its place is free.
    """

    attempts: Sequence[Attempt]
    started: float
    contexts: Sequence[Context] = ()
    stopped: dict[str, bool] | None = None
    task: JobTask | None = None
    thread: int | None = None
    used: float | None = None
    has_ended: bool = False


class Hooks(Middleware):
    """Calls the hooks with job events; if one raises, the others are still called."""

    def __init__(self, handlers: Handlers) -> None:
        self._hooks = handlers.job_hooks

    @property
    def receives_events(self) -> bool:
        """Whether there are any hooks."""
        return bool(self._hooks)

    def on_event(self, event: JobEvent) -> None:
        """Call each hook."""
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException:  # user code
                logger.exception("a hook raised", extra=about("hook_raised", event))


class TimeLimit(Middleware):
    """Ends a run after its time limit. The limit of a batch is the longest limit of its jobs.

    Args:
        handlers: Their limits apply to jobs without a limit.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def applies_to(self, execution: Execution) -> bool:
        """Whether a job has a limit."""
        attempts = execution.attempts
        registered = self._handlers.get(attempts[0].name)
        if registered is not None and registered.timeout is not None:
            return True
        if len(attempts) == 1:  # the usual case, without a generator
            return attempts[0].options.timeout is not None
        return any(attempt.options.timeout for attempt in attempts)

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Wait for the handler until the time limit.

        Raises:
            TimeoutError: The limit has passed. A plain function still runs in its thread, with
                ``ctx.cancelled`` set.
        """
        default = self._limit_of_handler(execution)
        limits = (attempt.options.timeout or default for attempt in execution.attempts)
        limit = max(limit for limit in limits if limit)
        try:
            async with asyncio.timeout(limit.total_seconds()) as timer:
                return await proceed()
        except TimeoutError as exc:
            if not timer.expired():
                raise  # the handler's own
            for context in execution.contexts:
                context.cancelled.set()
            # With the place where an async handler was cancelled, for the log of its job.
            raise TimeoutError(f"still running after {limit}") from exc.__cause__

    def _limit_of_handler(self, execution: Execution) -> timedelta | None:
        registered = self._handlers.get(execution.attempts[0].name)
        return registered.timeout if registered else None


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
    queue, shard = split_shard(attempt.queue)
    attributes: dict[str, str | int] = {
        "messaging.system": telemetry.SYSTEM,
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": attempt.job_id,
        "glidemq.job.name": attempt.name,
        "glidemq.attempt": attempt.attempts_made + 1,
    }
    if attempt.flow_id:
        attributes |= {"glidemq.flow.id": attempt.flow_id, "glidemq.node": attempt.node or ""}
        attributes["glidemq.flow.generation"] = attempt.generation
    if shard is not None:
        attributes["messaging.destination.partition.id"] = str(shard)
    with tracer.start_as_current_span(
        f"process {queue}", kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ):
        yield
