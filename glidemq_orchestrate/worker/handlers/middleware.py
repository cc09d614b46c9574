"""The interface of middleware around the call of a handler."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.registered import JobEvent

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
        """Call the handler with ``await proceed()``, and return its result, or another one.

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
    def hears_events(self) -> bool:
        """Whether ``on_event`` needs events now; if no middleware does, none are created."""
        return True


def inside_out(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The middleware that overrides ``around``, the innermost first."""
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
