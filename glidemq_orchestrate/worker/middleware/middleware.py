"""The interface of what happens around the call of a handler."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.execution import Execution
from glidemq_orchestrate.worker.handler import JobEvent

Proceed: TypeAlias = Callable[[], Awaitable[Any]]
"""Calls the handler, with the middleware that stands nearer to it around the call."""


class Middleware:
    """Something that happens around the calls of handlers; here it is nothing. Override what you need.

    ``Worker(middleware=[first, second])``: the first is the outermost of those that are given. The time limit
    of a job stands between all of them and its handler, so what they do themselves is not limited.

    Every method is called on the worker's loop, for jobs of all queues: be quick, and await what blocks.

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
        """Whether ``around`` is called for an execution; asked before each."""
        return True

    async def around(self, execution: Execution, proceed: Proceed) -> Any:  # noqa: ARG002  for subclasses
        """Call the handler with ``await proceed()``, and return what it returned, or something else.

        Whatever this raises counts as raised by the handler: ``RetryLater``, ``Skip`` and ``Unrecoverable``
        mean what they mean there. One that does not proceed keeps the handler from running; what it returns
        is the result. A job that is revoked or has lost its lease raises ``asyncio.CancelledError`` here: let
        it pass.

        Args:
            execution: Its ``contexts`` are what the handler gets: one, or several for a batch handler.
            proceed: Calls the handler. Await it once at most.
        """
        return await proceed()

    def on_event(self, event: JobEvent) -> None:
        """Hear what became of a job: see ``JobEvent``. What this raises is logged and changes nothing."""

    @property
    def hears_events(self) -> bool:
        """Whether ``on_event`` has a use for them now; where none has, no event is made."""
        return True


def inside_out(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Those that do something around calls, the innermost first."""
    return tuple(one for one in reversed(middleware) if type(one).around is not Middleware.around)


def wrap(
    around: Sequence[Middleware], execution: Execution, call: Callable[..., Awaitable[Any]], *given: Any
) -> Awaitable[Any]:
    """The call with all around it that applies, to be awaited; ``around`` is as ``inside_out`` has it."""
    proceed: Proceed | None = None
    for one in around:
        if one.applies_to(execution):
            proceed = functools.partial(one.around, execution, proceed or functools.partial(call, *given))
    return call(*given) if proceed is None else proceed()


def check_middleware(given: Sequence[object]) -> tuple[Middleware, ...]:
    """The middleware that a user has given.

    Raises:
        ConfigurationError: Something else is among it, such as a class in place of an instance.
    """
    for one in given:
        if not isinstance(one, Middleware):
            raise ConfigurationError(f"middleware must be instances of Middleware, got {one!r}")
    return tuple(one for one in given if isinstance(one, Middleware))
