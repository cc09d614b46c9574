"""FlowProducer and AsyncFlowProducer submit and find flows; Flow and AsyncFlow are handles of one flow."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.array import ArrayOperations
from glidemq_orchestrate.clients.operations.flow import FlowOperations
from glidemq_orchestrate.clients.operations.producer import ProducerOperations
from glidemq_orchestrate.clients.twins import (
    awaited,
    awaited_into,
    awaited_through,
    blocking,
    blocking_into,
    blocking_through,
    streamed,
    streamed_async,
    with_operations,
)
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

__all__ = ["AsyncFlow", "AsyncFlowArray", "AsyncFlowProducer", "Flow", "FlowArray", "FlowProducer"]


@with_operations
class FlowArray:
    """A handle of an array node of a flow, from ``Flow.array``. It caches no state."""

    def __init__(self, flow: Any, operations: ArrayOperations) -> None:
        self._operations, self._run = operations, flow._run  # noqa: SLF001  its own flow

    counts = blocking(ArrayOperations.counts)
    element = blocking(ArrayOperations.element)
    item = blocking(ArrayOperations.item)
    results = blocking(ArrayOperations.results)
    iter_results = streamed(ArrayOperations.iter_results)
    failed = blocking(ArrayOperations.failed)


@with_operations
class AsyncFlowArray:
    """A handle of an array node of a flow, from ``AsyncFlow.array``, with awaitable calls."""

    def __init__(self, flow: Any, operations: ArrayOperations) -> None:
        self._operations, self._run = operations, flow._run  # noqa: SLF001  its own flow

    counts = awaited(ArrayOperations.counts)
    element = awaited(ArrayOperations.element)
    item = awaited(ArrayOperations.item)
    results = awaited(ArrayOperations.results)
    iter_results = streamed_async(ArrayOperations.iter_results)
    failed = awaited(ArrayOperations.failed)


@with_operations
class Flow:
    """A handle of a flow on the server. It caches no state: every call reads it."""

    def __init__(self, producer: SyncFacade, operations: FlowOperations) -> None:
        self._operations, self._run = operations, producer._run  # noqa: SLF001  the flow's own producer
        self._closings = producer._closings  # noqa: SLF001  the same

    @property
    def id(self) -> str:
        """The id of the flow, for ``get``."""
        return self._ref.public_id

    @property
    def generation(self) -> int:
        """The generation of the flow id, 0 for the first."""
        return self._ref.generation

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""
        return self._ref.home.queue

    @property
    def _ref(self) -> FlowRef:
        return self._operations.ref

    def array(self, name: str) -> FlowArray:
        """The elements of an array node. Makes no call: the methods of the handle do."""
        return FlowArray(self, ArrayOperations(self._ref, name))

    now = blocking(FlowOperations.now)
    status = blocking(FlowOperations.status)
    node = blocking(FlowOperations.node)
    nodes = blocking(FlowOperations.nodes)
    leaves = blocking(FlowOperations.leaves)
    results = blocking(FlowOperations.results)
    waits = blocking(FlowOperations.waits)
    failures = blocking(FlowOperations.failures)
    logs = blocking(FlowOperations.logs)
    node_history = blocking(FlowOperations.node_history)
    outcome = blocking(FlowOperations.outcome)
    wait = blocking_through(FlowOperations.wait, FlowOperations.outage)
    supervise = blocking(FlowOperations.supervise)
    is_supervised = blocking(FlowOperations.is_supervised)
    watch = streamed(FlowOperations.watch, survives=FlowOperations.outage)
    watch_batches = streamed(FlowOperations.watch_batches)
    result = blocking_through(FlowOperations.result, FlowOperations.outage)
    owners = blocking(FlowOperations.owners)
    history = blocking(FlowOperations.history)

    cancel = blocking(FlowOperations.cancel)
    renew = blocking(FlowOperations.renew)
    note = blocking(FlowOperations.note)
    track = blocking(FlowOperations.track)
    untrack = blocking(FlowOperations.untrack)
    retry_failed = blocking(FlowOperations.retry_failed)
    restart = blocking(FlowOperations.restart)
    rerun = blocking(FlowOperations.rerun)
    retry_failures = blocking(FlowOperations.retry_failures)
    cancel_node = blocking(FlowOperations.cancel_node)
    complete_node = blocking(FlowOperations.complete_node)
    skip_node = blocking(FlowOperations.skip_node)
    extend = blocking(FlowOperations.extend)


@with_operations
class AsyncFlow:
    """A handle of a flow on the server, with awaitable calls. It caches no state: every call reads it."""

    def __init__(self, producer: AsyncFacade, operations: FlowOperations) -> None:
        self._operations, self._run = operations, producer._run  # noqa: SLF001  the flow's own producer
        self._closings = producer._closings  # noqa: SLF001  the same

    @property
    def id(self) -> str:
        """The id of the flow, for ``get``."""
        return self._ref.public_id

    @property
    def generation(self) -> int:
        """The generation of the flow id, 0 for the first."""
        return self._ref.generation

    @property
    def home(self) -> str:
        """The queue that holds the flow and emits its events."""
        return self._ref.home.queue

    @property
    def _ref(self) -> FlowRef:
        return self._operations.ref

    def array(self, name: str) -> AsyncFlowArray:
        """The elements of an array node. Makes no call: the methods of the handle do."""
        return AsyncFlowArray(self, ArrayOperations(self._ref, name))

    now = awaited(FlowOperations.now)
    status = awaited(FlowOperations.status)
    node = awaited(FlowOperations.node)
    nodes = awaited(FlowOperations.nodes)
    leaves = awaited(FlowOperations.leaves)
    results = awaited(FlowOperations.results)
    waits = awaited(FlowOperations.waits)
    failures = awaited(FlowOperations.failures)
    logs = awaited(FlowOperations.logs)
    node_history = awaited(FlowOperations.node_history)
    outcome = awaited(FlowOperations.outcome)
    wait = awaited_through(FlowOperations.wait, FlowOperations.outage)
    supervise = awaited(FlowOperations.supervise)
    is_supervised = awaited(FlowOperations.is_supervised)
    watch = streamed_async(FlowOperations.watch, survives=FlowOperations.outage)
    watch_batches = streamed_async(FlowOperations.watch_batches)
    result = awaited_through(FlowOperations.result, FlowOperations.outage)
    owners = awaited(FlowOperations.owners)
    history = awaited(FlowOperations.history)

    cancel = awaited(FlowOperations.cancel)
    renew = awaited(FlowOperations.renew)
    note = awaited(FlowOperations.note)
    track = awaited(FlowOperations.track)
    untrack = awaited(FlowOperations.untrack)
    retry_failed = awaited(FlowOperations.retry_failed)
    restart = awaited(FlowOperations.restart)
    rerun = awaited(FlowOperations.rerun)
    retry_failures = awaited(FlowOperations.retry_failures)
    cancel_node = awaited(FlowOperations.cancel_node)
    complete_node = awaited(FlowOperations.complete_node)
    skip_node = awaited(FlowOperations.skip_node)
    extend = awaited(FlowOperations.extend)


class FlowProducer(SyncFacade):
    """Submits flows to one server and finds them by id.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        reach = Reach(self._settings.kind == "cluster")
        self._operations = ProducerOperations(self._prefix, self._clock, reach, self._known_shards)

    submit = blocking_into(ProducerOperations.submit, Flow)
    check_workers = blocking(ProducerOperations.check_workers)
    now = blocking(ProducerOperations.now)
    supervise = blocking(ProducerOperations.supervise)
    plan = blocking(ProducerOperations.plan)
    get = blocking_into(ProducerOperations.get, Flow)
    statuses = blocking(ProducerOperations.statuses)
    list = blocking(ProducerOperations.list)


class AsyncFlowProducer(AsyncFacade):
    """Submits flows to one server and finds them by id, with awaitable calls, for one event loop.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        reach = Reach(self._settings.kind == "cluster")
        self._operations = ProducerOperations(self._prefix, self._clock, reach, self._known_shards)

    submit = awaited_into(ProducerOperations.submit, AsyncFlow)
    check_workers = awaited(ProducerOperations.check_workers)
    now = awaited(ProducerOperations.now)
    supervise = awaited(ProducerOperations.supervise)
    plan = awaited(ProducerOperations.plan)
    get = awaited_into(ProducerOperations.get, AsyncFlow)
    statuses = awaited(ProducerOperations.statuses)
    list = awaited(ProducerOperations.list)
