"""User code for job names: the registry, what a handler gets, and what it may raise to steer its job."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from glidemq_orchestrate.codec import Json, JsonLike
from glidemq_orchestrate.errors import ConfigurationError


class HandlerSignal(Exception):
    """Base of what a handler raises on purpose. Outside GlideMQError, so that no ``except`` swallows it."""


class Unrecoverable(HandlerSignal):
    """The job failed for good: no further attempt, whatever the options say."""


class RetryLater(HandlerSignal):
    """This attempt failed; the next one starts after ``delay``, within the job's attempts."""

    def __init__(self, delay: timedelta, reason: str = "asked to be retried later") -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"the delay of RetryLater must be a timedelta, got {delay!r}")
        if delay < timedelta(0):
            raise ValueError(f"the delay of RetryLater must not be negative, got {delay}")
        self.delay = delay
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler gets: its input, and ways to talk about the run. Usable from any thread.

    Attributes:
        queue: The queue the job came from.
        job_id: The job.
        name: The handler's name.
        attempt: 1 for the first run.
        data: The job's payload; shared by nobody, change it freely.
        inputs: Results of the dependencies by node name; empty outside a flow.
        cancelled: Set when the job was cancelled, timed out, or its lease went to another worker. Stop then:
            whatever is returned afterwards is thrown away.
        flow_id, node: The flow and the position in it; None outside a flow.
        progress: Call with any JSON value; readers see the newest.
        log: Call with a line of text; it is kept with the job.
    """

    queue: str
    job_id: str
    name: str
    attempt: int
    data: Json
    inputs: Mapping[str, Json]
    flow_id: str | None
    node: str | None
    progress: Callable[[JsonLike], None]
    log: Callable[[str], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


Handler = Callable[[Context], "JsonLike | Awaitable[JsonLike]"]
Hook = Callable[[], None]
H = TypeVar("H", bound=Handler)
K = TypeVar("K", bound=Hook)


class Handlers:
    """Handlers by job name, for one or several workers.

    Example:
        >>> handlers = Handlers()
        >>> @handlers.handler("double")
        ... def double(ctx):
        ...     return ctx.data * 2
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []

    def handler(self, name: str) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        Raises:
            ConfigurationError: The name is taken or empty.
        """
        if not name:
            raise ConfigurationError("a handler needs a job name")

        def register(function: H) -> H:
            if self._handlers.setdefault(name, function) is not function:
                raise ConfigurationError(f"job {name!r} has a handler already")
            return function

        return register

    def on_start(self, hook: K) -> K:
        """Register a function that runs once before the worker takes jobs; if it raises, none are taken."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: K) -> K:
        """Register a function that runs once after the worker's last job, also when starting failed."""
        self.stop_hooks.append(hook)
        return hook

    def include(self, other: Handlers) -> None:
        """Take over all handlers and hooks of another registry.

        Raises:
            ConfigurationError: A job name is in both.
        """
        for name, function in other._handlers.items():
            self.handler(name)(function)
        self.start_hooks.extend(hook for hook in other.start_hooks if hook not in self.start_hooks)
        self.stop_hooks.extend(hook for hook in other.stop_hooks if hook not in self.stop_hooks)

    def get(self, name: str) -> Handler | None:
        """The handler of a job name, or None."""
        return self._handlers.get(name)

    @property
    def names(self) -> list[str]:
        """The registered job names, sorted."""
        return sorted(self._handlers)
