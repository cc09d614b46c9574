"""User code in a worker: its kinds, the events for its hooks, and how a registered function runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.worker.handlers.context import Context

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
        index: The position of the element, if it is one of an array; then ``job_id`` is that of the array.
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
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What a worker serves, passed to the start hooks that take an argument.

    Attributes:
        queues: Their names, as the worker got them: a queue with shards is one.
        settings: The connection with its prefix, for clients that the hook creates.
    """

    queues: tuple[str, ...]
    settings: ConnectionSettings


@dataclass(frozen=True, slots=True)
class Registered:
    """User code for a job name, and where it runs: on the loop, in a thread, or in a separate process.

    Attributes:
        at_most_once: A job whose worker was lost does not run again.
        timeout: The max duration of a run of a job without a limit.
        batch_wait: Seconds that a batch waits for more jobs.
        grace: Seconds in which the function may return after its time limit.
    """

    function: Callable[..., Any]
    is_async: bool
    in_process: bool = False
    at_most_once: bool = False
    timeout: timedelta | None = None
    batch_size: int = 0
    batch_wait: float = 0.0
    grace: float = 0.0
