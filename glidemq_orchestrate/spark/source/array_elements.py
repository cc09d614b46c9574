"""The table of elements of arrays that have completed, in parts of consecutive positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.flows.elements import PAGE, Array, array_of, read_texts
from glidemq_orchestrate.flows.generation import FlowRef, current_generation
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.spark.source.options import RetryingClient
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire.call import Op, ask

PAGES: Final = 10


class Part(NamedTuple):
    """Some consecutive elements of an array."""

    flow_id: str
    generation: int
    array: Array
    span: range


def plan(client: RetryingClient, scan: Scan) -> list[Part]:
    """The parts in which the elements are read.

    Raises:
        FlowNotFound: There is no such flow.
        NodeNotFound, ConfigurationError: It has no such node, or the node is no array.
        FlowExpired: The jobs of the flow were removed.
    """
    found: list[Part] = []
    for flow_id in scan.flow_ids or ():
        for name in scan.nodes:
            generation, array = client.ask(partial(_find, client.prefix, flow_id, name))
            starts = range(0, array.size, scan.rows)
            spans = [range(at, min(at + scan.rows, array.size)) for at in starts]
            found += [Part(flow_id, generation, array, span) for span in spans]
    return found


def rows(client: RetryingClient, part: Part, scan: Scan) -> Iterator[list[Sequence[Any]]]:  # noqa: ARG001
    """The rows of a part, page by page."""
    for at in range(part.span.start, part.span.stop, PAGES * PAGE):
        stop = min(at + PAGES * PAGE, part.span.stop)
        texts = client.ask(partial(read_texts, part.array, at, stop))
        yield [
            (part.flow_id, part.generation, part.array.node.name, position, text)
            for position, text in texts.items()
        ]


def _find(prefix: str, flow_id: str, name: str) -> Op[tuple[int, Array]]:
    home = yield from ask(home_of(prefix, flow_id))
    if home is None:
        raise FlowNotFound(f"there is no flow {flow_id}")
    current = yield from ask(current_generation(home, flow_id))
    ref = FlowRef(home, current.stored_as if current else flow_id)
    return ref.generation, (yield from array_of(ref, name))
