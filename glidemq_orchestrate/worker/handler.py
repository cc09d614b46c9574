"""User code for job names: the registry, what a handler gets, and what it may raise to steer its job."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from glidemq_orchestrate.codec import Json, JsonLike
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.jobs.options import Fallback
from glidemq_orchestrate.jobs.usage import Usage

MAX_BATCH: Final = 1_000


class HandlerSignal(Exception):
    """Base of what a handler raises on purpose. Outside GlideMQError, so that no ``except`` swallows it."""


class Unrecoverable(HandlerSignal):
    """The job failed for good: no further attempt, whatever the options say."""


class Skip(HandlerSignal):
    """This job is not needed: it ends as completed without a result, as a node of a flow as skipped.

    What waits for the node is then skipped too, unless its rule says otherwise.
    """

    def __init__(self, reason: str = "its handler says that it is not needed") -> None:
        super().__init__(reason)


class RetryLater(HandlerSignal):
    """Not now: the handler runs again after ``delay``.

    This attempt failed and counts, so the job's attempts are the limit; with ``counts=False`` it costs none.
    """

    def __init__(
        self, delay: timedelta, reason: str = "asked to be retried later", *, counts: bool = True
    ) -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"the delay of RetryLater must be a timedelta, got {delay!r}")
        if delay < timedelta(0):
            raise ValueError(f"the delay of RetryLater must not be negative, got {delay}")
        self.delay, self.counts = delay, counts
        super().__init__(reason)


class WaitForChildren(HandlerSignal):
    """Park this job until every child it has added is done; then the handler runs again. Costs no attempt."""


class Suspend(HandlerSignal):
    """Park this job until somebody signals it; then the handler runs again with ``ctx.signals``.

    Costs no attempt. After ``timeout`` (None: never) the job fails.
    """

    def __init__(self, reason: str = "", timeout: timedelta | None = None) -> None:
        if timeout is not None and timeout < timedelta(milliseconds=1):
            raise ValueError(f"the timeout of Suspend must be at least a millisecond, got {timeout}")
        self.timeout = timeout
        super().__init__(reason)


class BatchError(HandlerSignal):
    """Raised by a batch handler of which only some jobs failed.

    ``results`` has one item per job, in order: an exception for a job that failed, anything else is its
    result.
    """

    def __init__(self, results: Sequence[JsonLike | BaseException]) -> None:
        self.results = list(results)
        super().__init__(f"{sum(isinstance(item, BaseException) for item in results)} of the batch failed")


class Cancelled:
    """Whether a handler should stop; usable from any thread. Cheap until somebody asks."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Whether the handler should stop."""
        return self._is_set

    def set(self) -> None:
        """Ask the handler to stop."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the handler should stop, at most ``timeout`` seconds; answers whether it should."""
        if self._event is None:
            self._event = threading.Event()
        if self._is_set:  # set in the meantime
            self._event.set()
        return self._event.wait(timeout)


class FlowOfNode(Protocol):
    """The flow of a running node: what its handler may add to it. See ``running_flow.RunningFlow``."""

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes, from a plain handler; they join the flow when the handler has returned."""

    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes, from an async handler."""

    def map_over(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Add a node an item, and one that collects them."""

    async def map_over_async(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """See ``map_over``, from an async handler."""


class Speaker(Protocol):
    """Takes what a handler says of its run, from any thread: what ``Context`` passes on."""

    def progress(self, value: JsonLike) -> None:
        """See ``Context.progress``."""

    def log(self, line: str) -> None:
        """See ``Context.log``."""

    def output(self, fields: Mapping[str, str]) -> None:
        """See ``Context.output``."""

    def report_usage(self, usage: Usage) -> None:
        """See ``Context.report_usage``."""


class Unheard:
    """A speaker where some things can be said to nobody: a base for those that take the others."""

    __slots__ = ()

    def progress(self, _value: JsonLike) -> None:
        """Raise: nobody is here."""
        raise RuntimeError(_UNHEARD)

    def log(self, _line: str) -> None:
        """Raise: nobody is here."""
        raise RuntimeError(_UNHEARD)

    def output(self, _fields: Mapping[str, str]) -> None:
        """Raise: nobody is here."""
        raise RuntimeError(_UNHEARD)

    def report_usage(self, _usage: Usage) -> None:
        """Raise: nobody is here."""
        raise RuntimeError(_UNHEARD)


_UNHEARD: Final = "there is no worker here to say it to"
_NOBODY: Final = Unheard()


@dataclass(slots=True, eq=False)
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
            whatever is returned afterwards is thrown away. A handler in a process is killed instead.
        flow_id, node: The flow and the position in it; None outside a flow.
        speaker: Takes what the handler says by the methods below.
        signals: What a suspended job was sent: ``{"name", "data", "receivedAt"}`` each, oldest first.
        flow: Adds nodes to the flow; None outside a flow, and for handlers in processes.
        fallback: The entry of the job's ``fallbacks`` that this attempt should use; None for the first
            attempt.
        allow_import: The packages from which this worker may import what a job names (``Worker``).
    """

    queue: str
    job_id: str
    name: str
    attempt: int
    data: Json
    inputs: Mapping[str, Json]
    flow_id: str | None
    node: str | None
    speaker: Speaker = _NOBODY
    cancelled: Cancelled = field(default_factory=Cancelled)
    signals: Sequence[Json] = ()
    fallback: Fallback | None = None
    flow: FlowOfNode | None = None
    allow_import: Sequence[str] = ()

    def progress(self, value: JsonLike) -> None:
        """Tell how far the run is, by any JSON value; readers see the newest.

        Raises:
            EncodeError: The value is not JSON, or too large.
        """
        self.speaker.progress(value)

    def log(self, line: str) -> None:
        """Keep a line of text with the job."""
        self.speaker.log(line)

    def output(self, fields: Mapping[str, str]) -> None:
        """Append texts by name to the job's output stream (``queue.read_output``).

        Raises:
            ServerBusy: Too much of what the job said is still to be sent.
        """
        self.speaker.output(fields)

    def report_usage(self, usage: Usage) -> None:
        """Tell what the job used; it replaces what it told before, and is charged to its budget."""
        self.speaker.report_usage(usage)


Handler = Callable[[Context], "JsonLike | Awaitable[JsonLike]"]
BatchHandler = Callable[[list[Context]], "Sequence[JsonLike] | Awaitable[Sequence[JsonLike]]"]
Hook = Callable[[], None]
JobHook = Callable[["JobEvent"], None]
BackoffStrategy = Callable[[int, BaseException], timedelta]
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)
K = TypeVar("K", bound=Hook)
J = TypeVar("J", bound=JobHook)
S = TypeVar("S", bound=BackoffStrategy)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a worker tells its hooks about one job.

    Attributes:
        kind: ``active``, ``completed``, ``retrying``, ``failed``, or ``lost`` (the lease went to somebody
            else).
        seconds: How long the handler ran; 0 for ``active``.
        reason: Why it failed; else empty.
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


@dataclass(frozen=True, slots=True)
class Registered:
    """User code for a job name, and where it runs: on the loop, in a thread, or in a process of its own."""

    function: Callable[..., Any]
    is_async: bool
    in_process: bool = False
    batch_size: int = 0
    batch_wait: float = 0.0


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
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []
        self.job_hooks: list[JobHook] = []
        self.backoffs: dict[str, BackoffStrategy] = {}

    def handler(self, name: str, *, process: bool = False) -> Callable[[H], H]:
        """Register a function for a job name: ``async def`` runs on the loop, ``def`` in a thread.

        Args:
            name: The job name.
            process: Run it in a process of its own, which a timeout or a cancel kills. Then it must be a
                plain function at the top of a module, and its context cannot be told that it was cancelled.

        Raises:
            ConfigurationError: The name is taken or empty, or an async function was to run in a process.
        """
        _check_name(name)

        def register(function: H) -> H:
            is_async = inspect.iscoroutinefunction(function)
            if process and is_async:
                raise ConfigurationError(
                    f"handler {name!r} is async: only a plain function runs in a process"
                )
            self._register(name, Registered(function, is_async, in_process=process))
            return function

        return register

    def batch_handler(
        self, name: str, *, size: int, wait: timedelta = timedelta(milliseconds=50)
    ) -> Callable[[B], B]:
        """Register a function that gets up to ``size`` jobs at once: a list of contexts, answered by a list.

        It runs when ``size`` jobs are there, or ``wait`` after the first of them came. A batch takes one
        place of the worker's concurrency; every job in it keeps its own attempts. Its timeout is the longest
        of its jobs.

        Raises:
            ConfigurationError: The name is taken or empty, the size not 1 to 1,000, or the wait negative.
        """
        _check_name(name)
        if not 1 <= size <= MAX_BATCH:
            raise ConfigurationError(f"the size of a batch must be 1 to {MAX_BATCH}, got {size}")
        if wait < timedelta(0):
            raise ConfigurationError(f"the wait of a batch must not be negative, got {wait}")

        def register(function: B) -> B:
            is_async = inspect.iscoroutinefunction(function)
            seconds = wait.total_seconds()
            self._register(name, Registered(function, is_async, batch_size=size, batch_wait=seconds))
            return function

        return register

    def backoff(self, name: str) -> Callable[[S], S]:
        """Register a backoff for jobs whose options name it: it gets the number of failures and the error.

        Raises:
            ConfigurationError: The name is taken, empty, or one of glide-mq's own (fixed, exponential).
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

    def on_job(self, hook: J) -> J:
        """Register a function that is told what happens to jobs. It runs on the worker's loop: be quick."""
        self.job_hooks.append(hook)
        return hook

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

    def get(self, name: str) -> Registered | None:
        """The handler of a job name, or None."""
        return self._handlers.get(name)

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


def _check_name(name: str) -> None:
    if not name:
        raise ConfigurationError("a handler needs a job name")
