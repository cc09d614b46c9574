"""The operations of FlowArray and AsyncFlowArray, which read the elements of an array node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.flows import elements
from glidemq_orchestrate.flows.elements import ArrayCounts, FailedElement, array_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.wire.call import Op

STREAMED: Final = 10_000


@dataclass
class ArrayOperations:
    """Operations on the elements of an array.

    Attributes:
        ref: The flow and its generation.
        name: The name of the array node.
    """

    ref: FlowRef
    name: str

    def counts(self) -> Op[ArrayCounts]:
        """Read how many elements have completed, failed and so on, in constant time.

        Raises:
            NodeNotFound: The flow has no node of this name.
            ConfigurationError: The node is not an array.
            Superseded, FlowNotFound, FlowExpired: The flow can no longer be read.
        """
        return (yield from elements.read_counts((yield from array_of(self.ref, self.name))))

    def element(self, index: int) -> Op[NodeStatus]:
        """Read one element in the form of a node, as ``Flow.node("clean[4711]")``.

        Raises:
            NodeNotFound: There is no such array or element.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """
        return elements.element_status(self.ref, f"{self.name}[{index}]")

    def item(self, index: int) -> Op[Any]:
        """Read the item of an element: ``ctx.data`` of its handler, if the node has no data of its own.

        Raises:
            NodeNotFound: There is no such array or element.
            ResultRemoved: The items were removed with the job of the array.
            ConfigurationError, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """
        return (yield from elements.read_item((yield from array_of(self.ref, self.name)), index))

    def results(self, start: int = 0, stop: int | None = None) -> Op[Mapping[int, Any]]:
        """Read the results of the elements completed so far, by position.

        A page of 1,000 elements costs two calls, and 20 pages one round trip. ``iter_results`` reads a large
        array without holding it in memory.

        Args:
            start: The first position.
            stop: The position after the last one; None: the end of the array.

        Raises:
            ResultRemoved: The job of the array was removed with its results.
            ConfigurationError: A position is not valid, or the node is not an array.
            NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """
        array = yield from array_of(self.ref, self.name)
        return (yield from elements.read_results(array, start, stop))

    def iter_results(self, start: int = 0, stop: int | None = None) -> ResultStream:
        """Read the same results step by step: pairs of position and result, in order.

        Raises:
            ResultRemoved, ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As
                ``results``.
        """
        return ResultStream(self, start, stop)

    def failed(self, *, limit: int = 1_000) -> Op[list[FailedElement]]:
        """Read elements that have failed for good, by position.

        Args:
            limit: Read at most this many of them: of more, any.

        Raises:
            ConfigurationError, NodeNotFound, Superseded, FlowNotFound, FlowExpired: As ``counts``.
        """
        array = yield from array_of(self.ref, self.name)
        return (yield from elements.read_failed(array, limit))


@dataclass(slots=True)
class ResultStream:
    """The results of an array, page by page."""

    array: ArrayOperations
    at: int
    stop: int | None

    def step(self) -> Op[Sequence[tuple[int, Any]]] | None:
        """Read the next page; None at the end."""
        return None if self.stop is not None and self.at >= self.stop else self._read()

    def _read(self) -> Op[Sequence[tuple[int, Any]]]:
        array = yield from array_of(self.array.ref, self.array.name)
        self.stop = array.size if self.stop is None else min(self.stop, array.size)
        until = min(self.at + STREAMED, self.stop)
        page = yield from elements.read_results(array, self.at, max(until, self.at))
        self.at = until
        return list(page.items())

    def end(self) -> Op[None] | None:
        """Nothing to clean up."""
        return None
