"""The argument of a handler: its input, and how it reports."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NoReturn

from glidemq_orchestrate.errors import InvalidJob, PayloadTooLarge
from glidemq_orchestrate.flows.pattern import map_over
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.foundation.durations import Duration, optional_duration
from glidemq_orchestrate.jobs.option_values import Fallback
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, JsonLike, is_utf8
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable


class Cancelled:
    """Whether a handler should stop. Usable from any thread.

    Attributes:
        is_stopping: Whether it should stop because the worker stops, or a user takes the job back: it is
            given back and runs again, unless it ends before.
        is_lost: Whether this attempt no longer owns the job: another attempt may run it.
    """

    __slots__ = ("_event", "_is_set", "is_lost", "is_stopping")

    def __init__(self) -> None:
        self.is_stopping = self.is_lost = False
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Whether the handler should stop."""
        return self._is_set

    __bool__ = is_set

    def set(self, *, is_stopping: bool = False, is_lost: bool = False) -> None:
        """Signal the handler to stop. The first reason stays; ``is_lost`` is set in any case."""
        self.is_stopping = self.is_stopping or (is_stopping and not self._is_set)
        self.is_lost = self.is_lost or is_lost
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Block until the handler should stop, at most for ``timeout``; returns whether it should.

        For plain handlers only: an async handler is cancelled.

        Raises:
            RuntimeError: It runs on an event loop, which it would block.
            ConfigurationError: The timeout is not a duration.
        """
        if _is_on_loop():
            raise RuntimeError(
                "cancelled.wait would block the event loop: an async handler is cancelled instead"
            )
        if self._event is None:
            self._event = threading.Event()
        if self._is_set:  # set in the meantime
            self._event.set()
        limit = optional_duration("timeout", timeout)
        return self._event.wait(None if limit is None else limit.total_seconds())


def _is_on_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_NO_ARRAYS: Final = (
    "results of arrays cannot be read here: this job is not in a flow, the queues of its flow are in several "
    "slots of a cluster, or its handler runs in a process"
)


_NO_ELEMENT: Final = (
    "nothing can be appended here: this job is not an element of an array over a list and names no other, it "
    "is in no flow, or its handler runs in a process"
)


class FlowOfNode(ABC):
    """The flow of a running node, for adding nodes. ``RunningFlow`` has limits and errors."""

    @abstractmethod
    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from a plain handler; they join the flow after the handler returns."""

    @abstractmethod
    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from an async handler; they join the flow after the handler returns."""

    def map_over(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
        array: bool = False,
    ) -> None:
        """Add a node per item or one array, and a node that collects the results, from a plain handler."""
        if nodes := map_over(template, items, collect=collect, array=array):
            self.add_nodes(nodes, before=before)

    async def map_over_async(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
        array: bool = False,
    ) -> None:
        """Add a node per item or one array, and a node that collects the results, from an async handler."""
        if nodes := map_over(template, items, collect=collect, array=array):
            await self.add_nodes_async(nodes, before=before)

    appended: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The encoded items that ``append`` has added, by the array; '' for the one of this element."""

    def append(self, items: Iterable[JsonLike], *, to: str | None = None) -> None:  # noqa: ARG002
        """Add elements to an array of the flow; they join it when this job completes."""
        raise RuntimeError(_NO_ELEMENT)

    def array_results(self, name: str, start: int = 0, stop: int | None = None) -> Mapping[int, Any]:  # noqa: ARG002
        """Read results of an array of the flow by position, from a plain handler."""
        raise RuntimeError(_NO_ARRAYS)

    async def array_results_async(
        self,
        name: str,  # noqa: ARG002
        start: int = 0,  # noqa: ARG002
        stop: int | None = None,  # noqa: ARG002
    ) -> Mapping[int, Any]:
        """Read results of an array of the flow by position, from an async handler."""
        raise RuntimeError(_NO_ARRAYS)

    @property
    def forgotten(self) -> str:
        """The name of an async method that was called and not awaited; empty for none."""
        return ""


class _NoFlow(FlowOfNode):
    """Stands for the flow where a handler cannot add nodes: false, and its methods raise."""

    __slots__ = ()
    _reason: Final = (
        "this job has no ctx.flow: it is not in a flow, the queues of its flow are in several slots of a "
        "cluster, or its handler runs in a process"
    )

    def __bool__(self) -> bool:
        return False

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:  # noqa: ARG002
        raise RuntimeError(self._reason)

    async def add_nodes_async(
        self,
        nodes: Iterable[FlowNode],  # noqa: ARG002
        *,
        before: Sequence[str] = (),  # noqa: ARG002
    ) -> None:
        raise RuntimeError(self._reason)


NO_FLOW: Final = _NoFlow()
_NO_WORKER: Final = "this context has no worker that receives reports"


class Reporter:
    """Receives what a handler reports through its ``Context``, from any thread.

    It has the methods of ``Context``. Subclasses override those that they support. The others raise, and
    without a worker all do.
    """

    __slots__ = ()

    def progress(self, _value: JsonLike) -> None:
        raise RuntimeError(_NO_WORKER)

    def log(self, _line: str) -> None:
        raise RuntimeError(_NO_WORKER)

    def output(self, _fields: Mapping[str, str]) -> None:
        raise RuntimeError(_NO_WORKER)

    def report_usage(self, _usage: Usage) -> None:
        raise RuntimeError(_NO_WORKER)

    def write_message(self, _text: str) -> None:
        raise RuntimeError(_NO_WORKER)

    def check_owner(self) -> None:
        raise RuntimeError(_NO_WORKER)

    async def check_owner_async(self) -> None:
        raise RuntimeError(_NO_WORKER)

    def note_published(self, _lines: Sequence[str]) -> None:
        """Record what this attempt has written, from a plain handler. Without a worker nothing is recorded.

        The lines are stored in the queue only when the result is accepted. They stay, even after the job is
        removed, until the data that they name is visible; see ``NotedQueue`` of
        ``spark.published.catching_up``.

        Raises:
            LeaseLost: The attempt no longer owns its job.
        """


_NO_REPORTER: Final = Reporter()


@dataclass(slots=True, eq=False)
class Context:
    """The argument of a handler: its input, and the methods for its reports. Usable from any thread.

    An async handler awaits the methods that end in ``_async``, and no others:

    - ``progress``, ``log``, ``output``, ``report_usage`` and ``write_message`` only report, and do not wait
      for the server.
    - ``flow.append`` only keeps the items until the element of an array completes.
    - Methods that need a reply of the server have two forms. A plain handler calls ``check_owner``,
      ``flow.add_nodes`` and ``flow.map_over``. An async handler awaits ``check_owner_async``,
      ``flow.add_nodes_async`` and ``flow.map_over_async``.
    - The plain form in an async handler is an error: it would block all other handlers. So is
      ``cancelled.wait``: an async handler is cancelled instead.

    Attributes:
        queue: The queue of the job.
        job_id: The job.
        name: The job name, by which the handler is registered.
        attempt: 1 for the first attempt.
        data: The job's payload, JSON; the handler may change it. ``Any``, since its producer decides on its
            form.
        inputs: Results of the dependencies by node name, JSON; empty outside a flow.
        cancelled: Set when the job was cancelled, timed out, or lost its lease. Stop then: the result is
            discarded. A handler in a process is killed instead. Also set when the worker stops and gives the
            job back, or a user takes it back: then ``cancelled.is_stopping`` is true.
        flow_id, node: The flow and the position in it; None outside a flow.
        reporter: Receives what the handler reports with the methods below.
        signals: The signals sent to a suspended job: ``{"name", "data", "receivedAt"}`` each, oldest first.
        flow: Adds nodes to the flow, and reads results of its arrays. False where that is not possible, and
            its methods raise RuntimeError: outside a flow, in a flow across slots of a cluster, and for
            handlers in processes.
        fallback: The entry of the job's ``fallbacks`` for this attempt; None for the first attempt.
        allow_import: The packages from which this worker may import what a job names; see ``Worker``.
        generation: The generation of the flow; 0 for the first, and outside a flow.
        epoch: The number of this attempt, assigned by the server: greater than that of every earlier attempt
            of the job, including lost ones, and of the node's jobs in earlier generations. Close to the
            server's time in milliseconds, so it may jump; 0 for broadcast messages. Use it to name what an
            attempt writes, and as a fencing token.
        token: Unique to this attempt, together with the job id.
        index: The position of the element in its array, from 0; None outside of arrays.
    """

    queue: str
    job_id: str
    name: str
    attempt: int
    data: Any
    inputs: Mapping[str, Any]
    flow_id: str | None
    node: str | None
    reporter: Reporter = _NO_REPORTER
    cancelled: Cancelled = field(default_factory=Cancelled)
    signals: Sequence[Any] = ()
    fallback: Fallback | None = None
    flow: FlowOfNode = NO_FLOW
    allow_import: Sequence[str] = ()
    generation: int = 0
    epoch: int = 0
    token: str = ""
    index: int | None = None

    def progress(self, value: JsonLike) -> None:
        """Report progress as any JSON value; readers see the latest.

        Raises:
            EncodeError: The value is not JSON, or too large.
        """
        self.reporter.progress(value)

    def log(self, line: str) -> None:
        """Store a line of text with the job. At least the last 10,000 lines remain."""
        self.reporter.log(line)

    def output(self, fields: Mapping[str, str]) -> None:
        """Append texts by name to the job's output stream (``queue.read_output``).

        The whole stream remains until the job is removed, without a limit of length.

        Raises:
            ServerBusy: Too much of the job's output is still unsent.
        """
        self.reporter.output(fields)

    def report_usage(self, usage: Usage) -> None:
        """Report what the job used. This replaces the previous report and is charged to the job's budget."""
        self.reporter.report_usage(usage)

    def write_message(self, text: str) -> None:
        """Write a message for readers that wait for this job (``queue.messages``).

        Unlike progress, no message is dropped: all are on the server, in order, before the result is
        accepted; otherwise the attempt fails. Readers can distinguish the messages of the accepted attempt
        from those of others. Messages remain for a week after the last message, even if the job is removed. A
        plain handler that writes faster than the server accepts must wait.

        Raises:
            InvalidJob: The message is not a text.
            PayloadTooLarge: The message is longer than 1 MiB.
            LeaseLost: Another attempt runs the job, or it was cancelled. Stop then.
            ServerBusy: More than 10,000 messages or 16 MiB of an async handler are still unsent.
        """
        self.reporter.write_message(checked_message(text))

    def fail(self, reason: str, *, group: str = "") -> NoReturn:
        """Fail the job without a further attempt: raises ``Unrecoverable``. For plain and async handlers.

        Args:
            reason: The text for status and errors.
            group: The group of ``Queue.failures`` in which it counts, such as ``upload error``: at most 256
                characters, none of them a control character. By default the group follows from the reason.
                Has no effect in a broadcast.

        Raises:
            Unrecoverable: Always.
            ConfigurationError: The group is not valid.
        """
        raise Unrecoverable(reason, group=group)

    def check_owner(self) -> None:
        """Return if this attempt owns its job now; for plain handlers, from any thread.

        Call it before something that only one attempt may do. It costs a round trip, and also detects that
        the process was stopped for longer than its lease. The job may be lost right afterwards: what must not
        happen twice needs a store that compares ``epoch``, or a separate name for each attempt.

        Raises:
            LeaseLost: Another attempt has the job, or it was cancelled, removed, or has ended. Stop then.
            TransportError: The server could not be reached, so the owner is unknown.
        """
        self.reporter.check_owner()

    async def check_owner_async(self) -> None:
        """Return if this attempt owns its job now; for async handlers. Otherwise as ``check_owner``.

        Raises:
            LeaseLost: Another attempt has the job, or it was cancelled, removed, or has ended. Stop then.
            TransportError: The server could not be reached, so the owner is unknown.
        """
        await self.reporter.check_owner_async()


def checked_message(text: str) -> str:
    """The text, if it can be sent as a message.

    Raises:
        InvalidJob, PayloadTooLarge: It cannot.
    """
    if not isinstance(text, str):
        raise InvalidJob(f"a message must be a str, got {type(text).__name__}")
    if not is_utf8(text):
        raise InvalidJob("a message must be text that UTF-8 can encode")
    if len(text.encode()) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"a message is longer than {MAX_PAYLOAD_BYTES:,} bytes", where="message")
    return text
