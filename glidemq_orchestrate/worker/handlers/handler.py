"""The registry of user code: handlers by job name, hooks, and backoffs."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.arguments import explained
from glidemq_orchestrate.foundation.durations import (
    MILLISECOND,
    Duration,
    duration,
    optional_duration,
    seconds,
)
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.worker.handlers.registered import (
    B,
    BackoffStrategy,
    H,
    Hook,
    J,
    JobHook,
    K,
    L,
    Registered,
    S,
    Serving,
    StartHook,
)

MAX_BATCH: Final = 1_000
F = TypeVar("F", bound=Callable[..., Any])


class RegistersHandlers(ABC):
    """Decorators that register user code, for ``Handlers`` and for the own handlers of a ``Worker``."""

    @property
    @abstractmethod
    def _registry(self) -> Handlers:
        """Where the functions are registered."""

    @overload
    def handler(
        self,
        function: H,
        /,
        *,
        process: bool = False,
        at_most_once: bool = False,
        timeout: Duration | None = None,
        grace: Duration = 0,
    ) -> H: ...

    @overload
    def handler(
        self,
        name: str | None = None,
        *,
        process: bool = False,
        at_most_once: bool = False,
        timeout: Duration | None = None,
        grace: Duration = 0,
    ) -> Callable[[H], H]: ...

    @explained()
    def handler(
        self,
        name: Any = None,
        *,
        process: bool = False,
        at_most_once: bool = False,
        timeout: Duration | None = None,
        grace: Duration = 0,
    ) -> Any:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        Args:
            name: The job name. Default: the name of the function, also as ``@handler`` without parentheses.
            process: Run it in a separate process, which a timeout or a cancel kills. It must be a plain
                function at the top level of a module, and its ``ctx.cancelled`` is never set.
            at_most_once: If the worker of a job is lost, fail the job instead of running it again, even if it
                has attempts left. If the worker was only unreachable, its run continues until
                its next heartbeat. Costs one read per job.
            timeout: The max duration of a run, for jobs without their own ``timeout``; afterwards the attempt
                fails. None: no limit.
            grace: How long a plain function in a thread, which cannot be killed, may take to return after its
                time limit. ``ctx.cancelled`` is set when the limit passes. The attempt ends when the function
                returns or the grace is over, so that the next attempt does not run beside it. By default the
                attempt ends immediately.

        Raises:
            ConfigurationError: The name is empty or already registered, or is missing and the function has
                no name (a lambda, a ``partial``); the function is async although ``process`` is set; a
                duration is not usable, or a handler that runs in no thread has a grace.
        """
        _check_name(name, "handler")
        whose = f"handler {name!r}" if isinstance(name, str) else "a handler"
        limit = optional_duration(f"the timeout of {whose}", timeout, min_=MILLISECOND)
        grace_seconds = seconds(duration(f"the grace of {whose}", grace))

        def register(function: F, job: str) -> None:
            is_async = inspect.iscoroutinefunction(function)
            if process and is_async:
                raise ConfigurationError(f"handler {job!r} is async: only a plain function runs in a process")
            if grace and (is_async or process):
                raise ConfigurationError(
                    f"handler {job!r} cannot have a grace: only plain functions in threads can"
                )
            _check_argument("handler", job, function)
            registered = Registered(function, is_async, process, at_most_once, limit, grace=grace_seconds)
            self._registry.register(job, registered)

        return _decorated(name, "handler", register)

    @explained()
    def batch_handler(
        self,
        name: str | None = None,
        *,
        size: int,
        wait: Duration = 0.05,
        timeout: Duration | None = None,
    ) -> Callable[[B], B]:
        """Register a function that handles up to ``size`` jobs at once: it takes and returns a list.

        It runs once ``size`` jobs have arrived, or ``wait`` after the first. A batch takes one place of the
        worker's concurrency; each of its jobs counts its own attempts. The time limit of a batch is the
        longest limit of its jobs; ``timeout`` is the limit of jobs that have none. The default name is that
        of the function.

        Raises:
            ConfigurationError: The name is missing, empty or already registered, the size is not 1 to 1,000,
                or a duration is not usable.
        """
        _check_name(name, "batch handler")
        if not 1 <= size <= MAX_BATCH:
            raise ConfigurationError(f"the size of a batch must be 1 to {MAX_BATCH}, got {described(size)}")
        batch_wait = seconds(duration("the wait of a batch", wait))
        limit = optional_duration("the timeout of a batch", timeout, min_=MILLISECOND)

        def register(function: F, job: str) -> None:
            is_async = inspect.iscoroutinefunction(function)
            _check_argument("batch handler", job, function)
            registered = Registered(function, is_async, timeout=limit, batch_size=size, batch_wait=batch_wait)
            self._registry.register(job, registered)

        decorator: Callable[[B], B] = _decorated(name, "batch handler", register)
        return decorator

    @overload
    def backoff(self, strategy: S, /) -> S: ...

    @overload
    def backoff(self, name: str | None = None) -> Callable[[S], S]: ...

    @explained()
    def backoff(self, name: Any = None) -> Any:
        """Register a backoff for jobs that name it; called with the number of failures and the error.

        The default name is that of the function.

        Raises:
            ConfigurationError: The name is missing, empty, already registered, or built in (fixed,
                exponential).
        """
        _check_name(name, "backoff")

        def register(strategy: BackoffStrategy, backoff: str) -> None:
            backoffs = self._registry.backoffs
            if backoff in ("fixed", "exponential") or backoff in backoffs:
                raise ConfigurationError(
                    f"backoff {backoff!r} cannot be registered: it is built in, or registered"
                )
            backoffs[backoff] = strategy

        return _decorated(name, "backoff", register)

    @explained()
    def on_job(self, hook: J) -> J:
        """Register a function to call with each ``JobEvent``. It runs on the worker's loop: do not block."""
        self._registry.job_hooks.append(hook)
        return hook

    @explained()
    def on_start(self, hook: L) -> L:
        """Register a function that runs once before the worker takes jobs; if it raises, the start fails.

        Until it has returned, the worker does not count as a worker of its queues. If it has a parameter
        without a default, it is called with a ``Serving``.
        """
        self._registry.start_hooks.append(hook)
        return hook

    @explained()
    def on_stop(self, hook: K) -> K:
        """Register a function that runs once after the worker's last job, even if its start failed."""
        self._registry.stop_hooks.append(hook)
        return hook


class Handlers(RegistersHandlers):
    """Handlers by job name, for one or several workers.

    Args:
        single_process: They share something large that each process would have once more, such as a model or
            a session. So ``glidemq worker`` runs them in one process, unless ``--processes`` says more.

    Example:
        >>> handlers = Handlers()
        >>> @handlers.handler
        ... def double(ctx):
        ...     return ctx.data * 2
    """

    def __init__(self, *, single_process: bool = False) -> None:
        self.single_process = single_process
        self._handlers: dict[str, Registered] = {}
        self.start_hooks: list[StartHook] = []
        self.stop_hooks: list[Hook] = []
        self.job_hooks: list[JobHook] = []
        self.backoffs: dict[str, BackoffStrategy] = {}

    @property
    def _registry(self) -> Handlers:
        return self

    def register(self, name: str, registered: Registered) -> None:
        """Register a handler.

        Raises:
            ConfigurationError: The name has another handler.
        """
        if self._handlers.setdefault(name, registered).function is not registered.function:
            raise ConfigurationError(f"job {name!r} has a handler already")

    @explained()
    def include(self, other: Handlers) -> None:
        """Add all handlers and hooks of another registry.

        Raises:
            ConfigurationError: A job name or backoff is in both.
        """
        for name, registered in other._handlers.items():
            self.register(name, registered)
        for name, strategy in other.backoffs.items():
            if self.backoffs.setdefault(name, strategy) is not strategy:
                raise ConfigurationError(f"backoff {name!r} is registered twice")
        self.single_process = self.single_process or other.single_process
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
        """Whether any handler runs in a separate process."""
        return any(registered.in_process for registered in self._handlers.values())

    @property
    def largest_batch(self) -> int:
        """The size of the largest batch that any handler takes; 0 without batch handlers."""
        return max((registered.batch_size for registered in self._handlers.values()), default=0)

    @property
    def slice_limits(self) -> Mapping[str, int]:
        """How many elements of arrays one slice has, by job name, where the handler decides that.

        Negative: a batch handler gets them with one call.
        """
        once = {name: 1 for name, registered in self._handlers.items() if registered.at_most_once}
        return once | {
            name: -registered.batch_size
            for name, registered in self._handlers.items()
            if registered.batch_size
        }

    @property
    def takes_all(self) -> bool:
        """Whether it has a handler for jobs of any name."""
        return False

    @property
    def names(self) -> list[str]:
        """The registered job names, sorted."""
        return sorted(self._handlers)


def _needs_argument(hook: Callable[..., object]) -> bool:
    """Whether a function must be called with an argument."""
    try:
        parameters = inspect.signature(hook).parameters.values()
    except ValueError:  # a C function without a signature
        return False
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in named and one.default is one.empty for one in parameters)


def _check_name(name: object, what: str) -> None:
    """Refuse a value that is neither a name nor a function."""
    if name == "":
        raise ConfigurationError(f"a {what} needs a name, got an empty one")
    if not (name is None or isinstance(name, str) or callable(name)):
        raise ConfigurationError(f"the name of a {what} must be str, got {described(name)}")


def _check_argument(what: str, job: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # it has no signature
        return
    except TypeError as exc:
        needed = "ctx" if what == "handler" else "a list of contexts"
        raise ConfigurationError(f"{what} {job!r} must take one argument, {needed}: {exc}") from None


def _decorated(name: Any, what: str, register: Callable[[Any, str], None]) -> Any:
    """The registered function, if ``name`` is a function; otherwise the decorator that registers one."""

    def decorate(function: F) -> F:
        register(function, name if isinstance(name, str) else _name_of(function, what))
        return function

    return decorate(name) if callable(name) else decorate


def _name_of(function: Callable[..., object], what: str) -> str:
    """The name of a function.

    Raises:
        ConfigurationError: It has no name.
    """
    name = getattr(function, "__name__", "<unnamed>")
    if not isinstance(name, str) or name.startswith("<"):
        kind = "a lambda" if name == "<lambda>" else described(function)
        raise ConfigurationError(f'the {what} is {kind}, which has no name. Fix: give one, such as "clean"')
    return name
