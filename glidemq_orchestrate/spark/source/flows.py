"""The tables of flows and of their nodes, in parts.

The index of a home queue has the current generation of each flow by state and creation time. There is no
index by end time: for that, one field of each flow that may match is read first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from glidemq_orchestrate.errors import FlowExpired, FlowNotFound, Superseded
from glidemq_orchestrate.flows.backend import backend_of, path_of, read_status
from glidemq_orchestrate.flows.generation import (
    FlowRef,
    current_generation,
    every_generation,
    record_fields,
)
from glidemq_orchestrate.flows.home import home_of, home_queues
from glidemq_orchestrate.flows.node_table import GONE, TimedNode, rows_page, timed_node, timed_nodes
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.spark.source.jobs import count, ms, text
from glidemq_orchestrate.spark.source.options import RetryingClient
from glidemq_orchestrate.spark.source.part import (
    Position,
    Span,
    Times,
    count_between,
    cut_sorted,
    grouped,
    page,
)
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire.call import Op, ask, ask_all, fields_of, parts
from glidemq_orchestrate.wire.codec import encode
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PER_TRIP: Final = 250
SAMPLE: Final = 100


@dataclass(frozen=True, slots=True)
class FlowSpan:
    """Some flows: from the index of a home queue, or with some ids."""

    home: str = ""
    span: Span | None = None
    ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The approximate number of flows."""
        return self.span.size if self.span else len(self.ids)


class ListedFlow(NamedTuple):
    """A stored generation of a flow."""

    home: QueueKeys
    stored_as: str
    status: FlowStatus
    path: str


Part: TypeAlias = tuple[FlowSpan, ...]
Row: TypeAlias = Sequence[Any]


def plan(client: RetryingClient, scan: Scan) -> list[Part]:
    """The parts in which the flows are read, with small parts combined."""
    return _plan(client, scan, scan.rows)


def plan_nodes(client: RetryingClient, scan: Scan) -> list[Part]:
    """The parts in which the nodes are read, each with flows of about the requested number of nodes."""
    if scan.flow_ids is not None:
        return _plan(client, scan, max(1, scan.rows // 100))
    rough = client.ask(lambda: _spans(client.prefix, scan, scan.rows))
    mean = client.ask(lambda: _mean_size(client.prefix, rough))
    return _plan(client, scan, max(1, scan.rows // mean))


def rows(client: RetryingClient, part: Part, scan: Scan) -> Iterator[list[Row]]:
    """The rows of flows, page by page."""
    for flows in _pages(client, part, scan):
        if flows:
            yield [_row(flow) for flow in flows]


def node_rows(client: RetryingClient, part: Part, scan: Scan) -> Iterator[list[Row]]:
    """The rows of nodes, page by page."""
    states = None if scan.states is None else frozenset(scan.states)
    for flows in _pages(client, part, scan):
        gathered: list[Row] = []
        for flow in flows:
            for nodes in _nodes(client, flow):
                gathered += [
                    _node_row(flow, one) for one in nodes if states is None or one.status.state in states
                ]
                if len(gathered) >= 1000:
                    yield gathered
                    gathered = []
        if gathered:
            yield gathered


def _plan(client: RetryingClient, scan: Scan, size: int) -> list[Part]:
    found = client.ask(lambda: _spans(client.prefix, scan, size))
    return list(grouped(found, [span.size for span in found], size))


def _pages(client: RetryingClient, part: Part, scan: Scan) -> Iterator[list[ListedFlow]]:
    for span in part:
        yield from client.pages(partial(_read, client.prefix, span, scan))


def _nodes(client: RetryingClient, flow: ListedFlow) -> Iterator[list[TimedNode]]:
    seen: set[str] = set()
    for found in client.pages(partial(_read_nodes, flow), "0"):
        yield [one for one in found if one.status.name not in seen]
        seen.update(one.status.name for one in found)


def _row(flow: ListedFlow) -> Row:
    found = flow.status
    labels = {text(key) or "": text(value) or "" for key, value in found.labels.items()}
    return (
        text(found.id), found.generation, text(found.name), text(found.home), found.state.value,
        text(found.reason), labels, text(found.idempotency_key), found.total, found.completed, found.failed,
        found.skipped, found.open, _ms(found.created_at), _ms(found.finished_at), found.superseded_by,
        found.broken,
    )  # fmt: skip


def _node_row(flow: ListedFlow, node: TimedNode) -> Row:
    found, whole = node.status, flow.status
    progress = None if found.progress is None else encode(found.progress, where="progress")
    return (
        text(whole.id), whole.generation, text(whole.name), whole.state.value, text(whole.home),
        text(found.name), text(found.job), text(found.queue), text(found.job_id), found.state.value,
        count(str(found.attempts)), count(str(found.reruns)), found.worker,
        text(found.reason), [text(one) or "" for one in found.after], progress,
        ms(node.created), ms(node.entry.partition("-")[0]), _ms(found.started_at), _ms(found.finished_at),
        found.broken,
    )  # fmt: skip


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _spans(prefix: str, scan: Scan, size: int) -> Op[list[FlowSpan]]:
    """The parts in which flows can be read, about ``size`` flows each."""
    if scan.flow_ids is not None:
        unique = tuple(dict.fromkeys(scan.flow_ids))
        return [FlowSpan(ids=unique[first : first + size]) for first in range(0, len(unique), size)]
    homes = yield from ask(home_queues(prefix))
    if scan.queues is not None:
        homes = [home for home in homes if scan.selects(home)]
    found: list[FlowSpan] = []
    times = scan.created.within(Times(high=scan.times.high))  # created before it ended
    if scan.with_past:  # the index has the last generation only
        times = Times(scan.created.low)
    for home in sorted(homes):
        keys = _indexes(QueueKeys(prefix, home), scan)
        lengths = yield from ask_all([count_between(key, *times.bounds) for key in keys])
        for key, length in zip(keys, lengths, strict=True):
            spans = yield from cut_sorted(key, times, length, size)
            found += [FlowSpan(home, span) for span in spans]
    return found


def _mean_size(prefix: str, parts: Sequence[FlowSpan]) -> Op[int]:
    """The approximate number of nodes per flow in these parts: the mean of a sample."""
    totals: list[int] = []
    for part in parts[:: max(1, len(parts) // 10)]:
        if part.span is None:
            continue
        stored, _ = yield from page(part.span, None)
        home = QueueKeys(prefix, part.home)
        some = stored[:: max(1, len(stored) // SAMPLE)]
        records = yield from ask_all([fields_of(home.flow(one), "total") for one in some])
        totals += [number(record[0]) for record in records]
    return max(1, sum(totals) // len(totals)) if totals else 1


def _read(
    prefix: str, part: FlowSpan, scan: Scan, at: Position | None
) -> Op[tuple[list[ListedFlow], Position | None]]:
    """The next page of the flows of a part, which begins with None."""
    if part.span is None:
        first = int(at.low) if at else 0
        some = part.ids[first : first + PER_TRIP]
        places = yield from _places(prefix, some)
        following = Position(str(first + PER_TRIP)) if first + PER_TRIP < len(part.ids) else None
    else:
        home = QueueKeys(prefix, part.home)
        stored, following = yield from page(part.span, at)
        if not scan.times.is_all and not scan.with_past:
            stored = yield from _only_ended(home, stored, scan.times)
        places = [(home, one) for one in stored]
    if scan.with_past:
        places = yield from _generations(places)
    found: list[ListedFlow] = []
    for some_places in parts(places, PER_TRIP):
        records = yield from ask_all([record_fields(home, stored) for home, stored in some_places])
        for (home, one), record in zip(some_places, records, strict=True):
            if "digest" in record:
                flow = ListedFlow(home, one, read_status(home, one, record), path_of(record.get("path")))
                found += [flow] if scan.has(flow.status) else []
    return found, following


def _read_nodes(flow: ListedFlow, cursor: str) -> Op[tuple[list[TimedNode], str | None]]:
    """A page of the nodes of a flow, which begins with ``0``; a node may come twice.

    Nothing if the flow no longer has nodes, because its retention has expired or another generation has
    begun.
    """
    ref = FlowRef(flow.home, flow.stored_as, flow.path)
    try:
        if not backend_of(ref).is_carried:
            following, found = yield from ask(timed_nodes(flow.home, flow.stored_as, cursor))
            return found, None if following == "0" else following
    except (FlowNotFound, FlowExpired, Superseded):
        return [], None
    following, rows = yield from ask(rows_page(flow.home, flow.stored_as, cursor))
    asking = [
        timed_node(QueueKeys(flow.home.prefix, row[1]), row[2], name, json.dumps(row), GONE)
        for name, row in rows.items()
    ]
    return (yield from ask_all(asking)), None if following == "0" else following


def _indexes(home: QueueKeys, scan: Scan) -> list[str]:
    if scan.states_of_flows == frozenset(FlowState) or scan.with_past:
        return [home.flows()]
    return [f"{home.flows()}:state:{state}" for state in sorted(scan.states_of_flows)]


def _only_ended(home: QueueKeys, stored: Sequence[str], finished: Times) -> Op[list[str]]:
    """The flows that ended in this time: one field of each is read."""
    found: list[str] = []
    for some in parts(stored, 4 * PER_TRIP):
        ends = yield from ask_all([fields_of(home.flow(one), "finished_at") for one in some])
        found += [one for one, (end,) in zip(some, ends, strict=True) if end and finished.has(number(end))]
    return found


def _places(prefix: str, flow_ids: Sequence[str]) -> Op[list[tuple[QueueKeys, str]]]:
    """The locations of the current generations of flows, without flows that do not exist."""
    homes = yield from ask_all([home_of(prefix, one) for one in flow_ids])
    claimed = [(home, one) for one, home in zip(flow_ids, homes, strict=True) if home is not None]
    current = yield from ask_all([current_generation(home, one) for home, one in claimed])
    return [
        (home, found.stored_as if found else one) for (home, one), found in zip(claimed, current, strict=True)
    ]


def _generations(places: Sequence[tuple[QueueKeys, str]]) -> Op[list[tuple[QueueKeys, str]]]:
    found: list[tuple[QueueKeys, str]] = []
    for some in parts(places, PER_TRIP):
        every = yield from ask_all([every_generation(home, stored) for home, stored in some])
        for (home, stored), past in zip(some, every, strict=True):
            found += [(home, one.stored_as) for one in past] or [(home, stored)]
    return found
