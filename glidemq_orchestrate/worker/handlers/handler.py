"""The registry of user code: handlers by job name, hooks, and backoffs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.foundation.durations import Duration, duration, seconds
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.worker.handlers.context import Context

MAX_BATCH: Final = 1_000

Handler = Callable[[Context], "JsonLike | Awaitable[JsonLike]"]
BatchHandler = Callable[[list[Context]], "Sequence[JsonLike] | Awaitable[Sequence[JsonLike]]"]
Hook = Callable[[], None]
StartHook = Hook | Callable[["Serving"], None]
JobHook = Callable[["JobEvent"], None]
BackoffStrategy = Callable[[int, BaseException], Duration]
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)
K = TypeVar("K", bound=Hook)
L = TypeVar("L", bound=StartHook)
J = TypeVar("J", bound=JobHook)
S = TypeVar("S", bound=BackoffStrategy)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of one job in a worker, passed to its hooks and middleware.

    Attributes:
        kind: ``active``, ``completed``, ``retrying``, ``failed``, or ``lost`` (the lease is lost).
        seconds: How long the handler ran; 0 for ``active``.
        reason: Why it failed; otherwise empty.
        epoch: The number of the attempt (``Context.epoch``).
    """

    kind: str
    queue: str
    job_id: str
    name: str
    attempt: int
    flow_id: str | None
    node: str | None
    seconds: float = 0.0
    reason: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """What a worker serves, passed to the start hooks that take an argument.

    Attributes:
        queues: Their names.
        settings: The connection with its prefix, for clients that the hook makes.
    """

    queues: tuple[str, ...]
    settings: ConnectionSettings


@dataclass(frozen=True, slots=True)
class Registered:
    """User code for a job name, and where it runs: on the loop, in a thread, or in a separate process.

    Attributes:
        at_most_once: Do not run a job again whose worker was lost.
        batch_wait: Seconds that a batch waits for more jobs.
        grace: Seconds in which the function may return after its time limit.
    """

    function: Callable[..., Any]
    is_async: bool
    in_process: bool = False
    at_most_once: bool = False
    batch_size: int = 0
    batch_wait: float = 0.0
    grace: float = 0.0


class Handlers:
    """Handlers by job name, for one or several workers.

    Example:
        >>> handlers = Handlers()
        >>> @handlers.handler("double")
        ... def double(ctx):
        ...     return ctx.data * 2
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Registered] = {}
        self.start_hooks: list[StartHook] = []
        self.stop_hooks: list[Hook] = []
        self.job_hooks: list[JobHook] = []
        self.backoffs: dict[str, BackoffStrategy] = {}

    @explained()
    def handler(
        self, name: str, *, process: bool = False, at_most_once: bool = False, grace: Duration = 0
    ) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        Args:
            name: The job name.
            process: Run it in a separate process, which a timeout or a cancel kills. It must be a plain
                function at the top level of a module, and its ``ctx.cancelled`` is never set.
            at_most_once: If the worker of a job is lost, fail the job for good instead of running it again,
                even if it has attempts left. If the worker was only unreachable, its run continues until
                its next heartbeat. Costs one read per job.
            grace: How long a plain function in a thread, which cannot be killed, may take to return after its
                time limit. ``ctx.cancelled`` is set when the limit passes. The attempt ends when the function
                returns or the grace is over, so that the next attempt does not run beside it. By default the
                attempt ends at once.

        Raises:
            ConfigurationError: The name is empty or already registered, the function is async although
                ``process`` is set, or the grace is negative or set for a handler that runs in no thread.
        """
        _check_name(name)
        grace_seconds = seconds(duration(f"the grace of handler {name!r}", grace))

        def register(function: H) -> H:
            is_async = inspect.iscoroutinefunction(function)
            if process and is_async:
                raise ConfigurationError(
                    f"handler {name!r} is async: only a plain function runs in a process"
                )
            if grace and (is_async or process):
                raise ConfigurationError(
                    f"handler {name!r} cannot have a grace: only plain functions in threads can"
                )
            self._register(name, Registered(function, is_async, process, at_most_once, grace=grace_seconds))
            return function

        return register

    @explained()
    def batch_handler(self, name: str, *, size: int, wait: Duration = 0.05) -> Callable[[B], B]:
        """Register a function that handles up to ``size`` jobs at once: it takes and returns a list.

        It runs once ``size`` jobs have arrived, or ``wait`` after the first. A batch takes one place of the
        worker's concurrency; each of its jobs keeps its own attempts. Its time limit is the longest of its
        jobs.

        Raises:
            ConfigurationError: The name is empty or already registered, the size is not 1 to 1,000, or the
                wait is negative.
        """
        _check_name(name)
        if not 1 <= size <= MAX_BATCH:
            raise ConfigurationError(f"the size of a batch must be 1 to {MAX_BATCH}, got {described(size)}")
        batch_wait = seconds(duration("the wait of a batch", wait))

        def register(function: B) -> B:
            is_async = inspect.iscoroutinefunction(function)
            self._register(name, Registered(function, is_async, batch_size=size, batch_wait=batch_wait))
            return function

        return register

    @explained()
    def backoff(self, name: str) -> Callable[[S], S]:
        """Register a backoff for jobs that name it; called with the number of failures and the error.

        Raises:
            ConfigurationError: The name is empty, already registered, or built in (fixed, exponential).
        """

        def register(strategy: S) -> S:
            if not name or name in ("fixed", "exponential") or name in self.backoffs:
                raise ConfigurationError(f"backoff {name!r} cannot be registered: empty, built in, or taken")
            self.backoffs[name] = strategy
            return strategy

        return register

    def _register(self, name: str, registered: Registered) -> None:
        if self._handlers.setdefault(name, registered).function is not registered.function:
            raise ConfigurationError(f"job {name!r} has a handler already")

    @explained()
    def on_job(self, hook: J) -> J:
        """Register a function to call with each ``JobEvent``. It runs on the worker's loop: do not block."""
        self.job_hooks.append(hook)
        return hook

    @explained()
    def on_start(self, hook: L) -> L:
        """Register a function that runs once before the worker takes jobs; if it raises, the start fails.

        If it has a parameter without a default, it is called with a ``Serving``.
        """
        self.start_hooks.append(hook)
        return hook

    @explained()
    def on_stop(self, hook: K) -> K:
        """Register a function that runs once after the worker's last job, even if its start failed."""
        self.stop_hooks.append(hook)
        return hook

    @explained()
    def include(self, other: Handlers) -> None:
        """Add all handlers and hooks of another registry.

        Raises:
            ConfigurationError: A job name or backoff is in both.
        """
        for name, registered in other._handlers.items():
            self._register(name, registered)
        for name, strategy in other.backoffs.items():
            if self.backoffs.setdefault(name, strategy) is not strategy:
                raise ConfigurationError(f"backoff {name!r} is registered twice")
        self.job_hooks.extend(hook for hook in other.job_hooks if hook not in self.job_hooks)
        self.start_hooks.extend(hook for hook in other.start_hooks if hook not in self.start_hooks)
        self.stop_hooks.extend(hook for hook in other.stop_hooks if hook not in self.stop_hooks)

    def starting(self, serving: Serving) -> list[Hook]:
        """The start hooks, ready to be called."""
        hooks: list[Any] = list(self.start_hooks)
        return [partial(hook, serving) if _needs_argument(hook) else hook for hook in hooks]

    def get(self, name: str) -> Registered | None:
        """The handler of a job name, or None."""
        return self._handlers.get(name)

    @property
    def registered(self) -> Mapping[str, Registered]:
        """All handlers, by job name."""
        return MappingProxyType(self._handlers)

    @property
    def has_processes(self) -> bool:
        """Whether any handler runs in a process of its own."""
        return any(registered.in_process for registered in self._handlers.values())

    @property
    def largest_batch(self) -> int:
        """The size of the largest batch that any handler takes; 0 without batch handlers."""
        return max((registered.batch_size for registered in self._handlers.values()), default=0)

    @property
    def names(self) -> list[str]:
        """The registered job names, sorted."""
        return sorted(self._handlers)


def _needs_argument(hook: Callable[..., object]) -> bool:
    """Whether a function must be called with an argument."""
    try:
        parameters = inspect.signature(hook).parameters.values()
    except ValueError:  # of C, without a signature
        return False
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in named and one.default is one.empty for one in parameters)


def _check_name(name: str) -> None:
    if not name:
        raise ConfigurationError("a handler needs a job name")
