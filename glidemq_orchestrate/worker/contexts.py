"""Creates the context of a handler from an attempt, with the flow to which the handler may add nodes."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, DecodeError, FlowTooLarge, ServerBusy
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.elements import results_in_flow
from glidemq_orchestrate.flows.node_table import read_results
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import NODE
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.wire.call import Run, ask
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, JsonLike, decode, encode_each
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.replies import is_moving
from glidemq_orchestrate.wire.stored import number
from glidemq_orchestrate.worker.handlers.context import NO_FLOW, Cancelled, Context, FlowOfNode
from glidemq_orchestrate.worker.messenger import Messenger

MOVING_PAUSE: Final = 0.5
MAX_APPENDED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Contexts:
    """Creates the contexts of handlers.

    Attributes:
        run: Drives operations.
        queues: Keys by queue name.
        messenger: Sends the messages of handlers.
        clock: The current time.
        allow_import: The packages from which handlers may import what a job names.
        patience: For how many seconds handlers wait for a slot that is moving.
    """

    run: Run
    queues: Mapping[str, QueueKeys]
    messenger: Messenger
    clock: Clock
    allow_import: Sequence[str] = ()
    patience: float = 0.0

    def make(self, attempt: Attempt) -> Context:
        """The context of an attempt.

        Raises:
            DecodeError: The stored data, inputs or signals are not valid JSON.
        """
        options, index, signals = attempt.options, attempt.fallback_index, attempt.signals
        sent = decode(signals, where=f"signals of job {attempt.job_id}") if signals else ()
        context = Context(  # without keywords, which take longer
            attempt.queue,
            attempt.job_id,
            attempt.name,
            attempt.attempts_made + 1,
            decode(attempt.data, where=f"data of job {attempt.name}"),
            read_results(attempt.inputs) if attempt.inputs else {},
            attempt.flow_id,
            attempt.node,
            self.messenger.of(attempt),
            Cancelled(),
            _read_signals(sent) if sent else (),
            options.fallbacks[index - 1] if 0 < index <= len(options.fallbacks) else None,
            NO_FLOW if attempt.flow_id is None else self._flow_of(attempt),
            self.allow_import,
            attempt.generation,
            attempt.epoch,
            attempt.token,
        )
        if attempt.array_id:
            context.index = attempt.element
        return context

    def of_element(self, attempt: Attempt, index: int, item: Any, tried: int) -> Context:
        """The context of an element of an array; ``attempt`` is the slice that it belongs to.

        Raises:
            DecodeError: The stored data or inputs of the array are not valid JSON.
        """
        context = self.make(attempt)
        context.index, context.attempt = index, tried + 1
        context.data = item if context.data is None else {**context.data, "item": item}
        return context

    async def was_lost(self, attempt: Attempt) -> bool:
        """Whether a worker was lost while it ran the job.

        Raises:
            GlideMQError: It could not be read.
        """
        keys = self.queues[attempt.queue]
        names: tuple[JobField, ...] = ("stalledCount", "gmo:lost")
        return any(await self.run(ask(job_hash.get_some(keys, attempt.job_id, names, _counts))))

    def _flow_of(self, attempt: Attempt) -> FlowOfNode:
        if attempt.options.portable:
            return NO_FLOW
        prefix, loop = self.queues[attempt.queue].prefix, asyncio.get_running_loop()
        return WatchedFlow(self.run, loop, prefix, attempt, self.clock, self.patience)


def _counts(reply: Any) -> list[int]:
    return [number(text) for text in reply]


def refuse_unreadable(attempts: Sequence[Attempt]) -> None:
    """Refuse an attempt that no handler can run.

    Raises:
        DecodeError: Fields of the job hold impossible values; the message lists them.
    """
    for attempt in attempts:
        if attempt.unreadable:
            raise DecodeError(attempt.unreadable)


def portable(context: Context) -> dict[str, Any]:
    """The fields of a context that a handler process receives."""
    names = ("queue", "job_id", "name", "attempt", "data", "inputs", "flow_id", "node", "signals", "fallback")
    more = ("allow_import", "generation", "epoch", "token", "index")
    return {name: getattr(context, name) for name in (*names, *more)}


def _read_signals(stored: Any) -> Sequence[Any]:
    """The signals with decoded data, which glide-mq stores as JSON within JSON."""
    if not isinstance(stored, list):
        return ()
    return [
        {**signal, "data": decode(signal.get("data"), where="data of a signal")}
        for signal in stored
        if isinstance(signal, dict)
    ]


class RunningFlow(FlowOfNode):
    """Adds nodes to the flow of a running node; they join the flow after the handler returns.

    Nodes added by a failed, lost or cancelled attempt never run, and are removed within 15 minutes.

    Args:
        run: Drives operations on the worker's loop.
        loop: The worker's loop, which runs in the thread that creates this object.
        prefix: First part of every key.
        attempt: The attempt of the node.
        clock: The current time.
        patience: For how many seconds a call waits for a slot that is moving.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of its worker that it needs
        self,
        run: Run,
        loop: asyncio.AbstractEventLoop,
        prefix: str,
        attempt: Attempt,
        clock: Clock,
        patience: float,
    ) -> None:
        self._run, self._loop, self._prefix = run, loop, prefix
        self._attempt, self._clock, self._patience = attempt, clock, patience
        self._thread = threading.current_thread()

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from a plain handler, all or none. An async handler awaits ``add_nodes_async``.

        They may depend on each other, on nodes of the flow, and on nodes that an earlier call added; those
        without dependencies depend on this node. Repeating the call changes nothing.

        Args:
            nodes: One or more; the flow may have 100,000 in all.
            before: Dependents of this node that are also to depend on the last of the added nodes and get
                their results; at most 100. The added nodes may then depend only on completed nodes and on
                this one.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency, FlowTooLarge), ConfigurationError,
            EncodeError, PayloadTooLarge: They cannot be added as written; nothing was added.
            NodeExists: The flow has another node of that name; nothing was added.
            LeaseLost: The attempt no longer owns its job.
            TransportError: The server could not be reached. Call again.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("add_nodes would block the worker's loop: await add_nodes_async instead")
        asyncio.run_coroutine_threadsafe(self.add_nodes_async(nodes, before=before), self._loop).result()

    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        """Add nodes from an async handler; otherwise as ``add_nodes``."""
        nodes, until = list(nodes), self._loop.time() + self._patience
        while True:
            try:
                await self._run(backend.add_nodes(self._prefix, self._attempt, nodes, before, self._clock))
            except ServerBusy as exc:
                if not is_moving(exc) or self._loop.time() > until:
                    raise
                await asyncio.sleep(MOVING_PAUSE)
            else:
                return

    def append(self, items: Iterable[JsonLike], *, to: str | None = None) -> None:
        """Add elements to an array over a list of this flow, from any handler.

        They join the end of the array when this job completes, in the same step; a failed, lost or cancelled
        attempt adds nothing. The array completes after them, and its counts include them. When all of a
        completed array runs again, it begins with its original items.

        Args:
            items: JSON; at most 1,000 from each attempt, with 1 MiB in all.
            to: The array node; None: the one of which this job is an element. An element can add to no other.
                If the flow has no such array, or it has ended, this attempt fails, and is not retried.

        Raises:
            RuntimeError: This job is not an element of an array over a list, or with ``to``, it is one.
            ConfigurationError: ``items`` is a text or an object, so it is one item and no list.
            EncodeError, PayloadTooLarge: An item is not JSON, or too large. Nothing was added.
            FlowTooLarge: These would be too many or too large. Nothing was added.
        """
        attempt, name = self._attempt, to or ""
        if attempt.is_of_array is not (to is None) or (attempt.is_of_array and not attempt.is_growing):
            super().append(items, to=to)
        if to is not None:
            NODE.check(to)
        if isinstance(items, str | bytes | Mapping):
            raise ConfigurationError(f"items must be a list, got {described(items)}. Fix: append([...])")
        texts = [*self.appended.get(name, ()), *encode_each(list(items), where="item")]
        appended = {**self.appended, name: texts}
        sizes = [len(text) for texts in appended.values() for text in texts]
        if len(sizes) > MAX_APPENDED or sum(sizes) > MAX_PAYLOAD_BYTES:
            raise FlowTooLarge(
                f"an attempt can append at most {MAX_APPENDED:,} items with {MAX_PAYLOAD_BYTES:,} characters "
                f"in all, not {len(sizes):,} with {sum(sizes):,}"
            )
        self.appended = appended

    def array_results(self, name: str, start: int = 0, stop: int | None = None) -> Mapping[int, Any]:
        """Read the results of completed elements of an array of this flow, by position, from a plain handler.

        Read a large array in parts: 1,000 elements cost two calls. An async handler awaits
        ``array_results_async``.

        Args:
            name: The array node.
            start: The first position.
            stop: The position after the last one; None: the end of the array.

        Raises:
            NodeNotFound, ConfigurationError: The flow has no array of this name, or a position is not valid.
            ResultRemoved: The job of the array was removed with its results.
            Superseded, FlowNotFound, FlowExpired: The flow can no longer be read.
            TransportError: The server could not be reached. Call again.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "array_results would block the worker's loop: await array_results_async instead"
            )
        reading = self.array_results_async(name, start, stop)
        return asyncio.run_coroutine_threadsafe(reading, self._loop).result()

    async def array_results_async(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> Mapping[int, Any]:
        """Read them from an async handler; otherwise as ``array_results``."""
        op = results_in_flow(self._prefix, self._attempt.stored_flow, name, start, stop)
        return await self._run(op)


class WatchedFlow(RunningFlow):
    """Notices calls of its async methods that are not awaited; the arguments are those of ``RunningFlow``."""

    _calls: Sequence[tuple[str, Coroutine[Any, Any, None]]] = ()

    def add_nodes_async(
        self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()
    ) -> Coroutine[Any, Any, None]:
        """Add nodes from an async handler; otherwise as ``add_nodes``."""
        return self._called("add_nodes_async", super().add_nodes_async(nodes, before=before))

    def map_over_async(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
        array: bool = False,
    ) -> Coroutine[Any, Any, None]:
        """Add a node per item or one array, and a node that collects the results, from an async handler."""
        mapping = super().map_over_async(template, items, collect=collect, before=before, array=array)
        return self._called("map_over_async", mapping)

    def _called(self, name: str, call: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        self._calls = [*((name, one) for name, one in self._calls if _is_new(one)), (name, call)]
        return call

    @property
    def forgotten(self) -> str:
        """The name of an async method that was called and not awaited; empty for none."""
        new = [(name, call) for name, call in self._calls if _is_new(call)]
        for _, call in new:
            call.close()  # otherwise Python warns, too
        return new[0][0] if new else ""


def _is_new(call: Coroutine[Any, Any, None]) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED
