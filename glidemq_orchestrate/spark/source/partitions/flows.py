"""The flows of a server, and their nodes, in parts.

The index of a home queue has the current generation of each flow by state and creation time. There is no
index by end time: for that, one field of each flow that may match is read first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

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
from glidemq_orchestrate.spark.source.partitions.part import (
    ALL_TIMES,
    At,
    Span,
    Times,
    count_between,
    cut_sorted,
    page,
)
from glidemq_orchestrate.wire.call import Op, ask, ask_all, fields_of
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PER_TRIP: Final = 250
SAMPLE: Final = 100
ENDED: Final = frozenset({FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED})
STATES: Final = frozenset(FlowState)


@dataclass(frozen=True, slots=True)
class WantedFlows:
    """The selected flows.

    Attributes:
        ids: Only flows with these ids; None: all.
        homes: Only flows with these home queues; None: all.
        finished: Only flows that ended in this time, unless it is unlimited.
        with_past: Whether to include superseded generations.
    """

    ids: tuple[str, ...] | None = None
    homes: tuple[str, ...] | None = None
    states: frozenset[FlowState] = STATES
    created: Times = ALL_TIMES
    finished: Times = ALL_TIMES
    with_past: bool = False

    @property
    def those(self) -> frozenset[FlowState]:
        """The states that such flows can have."""
        return self.states if self.finished.is_all else self.states & ENDED

    def has(self, flow: FlowStatus) -> bool:
        """Whether a flow is selected."""
        return (
            flow.state in self.those
            and (self.homes is None or flow.home in self.homes)
            and _is_in(self.created, flow.created_at)
            and _is_in(self.finished, flow.finished_at)
        )


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


def plan(prefix: str, wanted: WantedFlows, size: int) -> Op[list[FlowSpan]]:
    """The parts in which flows can be read, about ``size`` flows each."""
    if wanted.ids is not None:
        unique = tuple(dict.fromkeys(wanted.ids))
        return [FlowSpan(ids=unique[first : first + size]) for first in range(0, len(unique), size)]
    homes = yield from ask(home_queues(prefix))
    if wanted.homes is not None:
        homes = [home for home in homes if home in wanted.homes]
    found: list[FlowSpan] = []
    times = wanted.created.within(Times(high=wanted.finished.high))  # created before it ended
    if wanted.with_past:  # the index has the last generation only
        times = Times(wanted.created.low)
    for home in sorted(homes):
        keys = _indexes(QueueKeys(prefix, home), wanted)
        lengths = yield from ask_all([count_between(key, *times.bounds) for key in keys])
        for key, length in zip(keys, lengths, strict=True):
            spans = yield from cut_sorted(key, times, length, size)
            found += [FlowSpan(home, span) for span in spans]
    return found


def mean_size(prefix: str, parts: Sequence[FlowSpan]) -> Op[int]:
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


def read(
    prefix: str, part: FlowSpan, wanted: WantedFlows, at: At | None
) -> Op[tuple[list[ListedFlow], At | None]]:
    """The next page of the flows of a part, which begins with None."""
    if part.span is None:
        first = int(at.low) if at else 0
        some = part.ids[first : first + PER_TRIP]
        places = yield from _places(prefix, some)
        following = At(str(first + PER_TRIP)) if first + PER_TRIP < len(part.ids) else None
    else:
        home = QueueKeys(prefix, part.home)
        stored, following = yield from page(part.span, at)
        if not wanted.finished.is_all and not wanted.with_past:
            stored = yield from _ended(home, stored, wanted.finished)
        places = [(home, one) for one in stored]
    if wanted.with_past:
        places = yield from _generations(places)
    found: list[ListedFlow] = []
    for first in range(0, len(places), PER_TRIP):
        some_places = places[first : first + PER_TRIP]
        records = yield from ask_all([record_fields(home, stored) for home, stored in some_places])
        for (home, one), record in zip(some_places, records, strict=True):
            if "digest" in record:
                flow = ListedFlow(home, one, read_status(home, one, record), path_of(record.get("path")))
                found += [flow] if wanted.has(flow.status) else []
    return found, following


def nodes(flow: ListedFlow, cursor: str) -> Op[tuple[list[TimedNode], str | None]]:
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


def _indexes(home: QueueKeys, wanted: WantedFlows) -> list[str]:
    if wanted.those == STATES or wanted.with_past:
        return [home.flows()]
    return [f"{home.flows()}:state:{state}" for state in sorted(wanted.those)]


def _is_in(times: Times, moment: datetime | None) -> bool:
    return times.is_all or (moment is not None and times.has(round(moment.timestamp() * 1000)))


def _ended(home: QueueKeys, stored: Sequence[str], finished: Times) -> Op[list[str]]:
    """The flows that ended in this time: one field of each is read."""
    found: list[str] = []
    for first in range(0, len(stored), 4 * PER_TRIP):
        some = stored[first : first + 4 * PER_TRIP]
        ends = yield from ask_all([fields_of(home.flow(one), "finished_at") for one in some])
        found += [one for one, (end,) in zip(some, ends, strict=True) if end and finished.has(number(end))]
    return found


def _places(prefix: str, flow_ids: Sequence[str]) -> Op[list[tuple[QueueKeys, str]]]:
    """The locations of the current generations of flows, without flows that do not exist."""
    owners = yield from ask_all([home_of(prefix, one) for one in flow_ids])
    claimed = [(QueueKeys(prefix, owner), one) for one, owner in zip(flow_ids, owners, strict=True) if owner]
    current = yield from ask_all([current_generation(home, one) for home, one in claimed])
    return [
        (home, found.stored_as if found else one) for (home, one), found in zip(claimed, current, strict=True)
    ]


def _generations(places: Sequence[tuple[QueueKeys, str]]) -> Op[list[tuple[QueueKeys, str]]]:
    found: list[tuple[QueueKeys, str]] = []
    for first in range(0, len(places), PER_TRIP):
        some = places[first : first + PER_TRIP]
        every = yield from ask_all([every_generation(home, stored) for home, stored in some])
        for (home, stored), past in zip(some, every, strict=True):
            found += [(home, one.stored_as) for one in past] or [(home, stored)]
    return found
