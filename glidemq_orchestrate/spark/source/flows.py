"""The rows of the tables of flows and of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from glidemq_orchestrate.flows.node_table import TimedNode
from glidemq_orchestrate.spark.source.jobs import count, ms, text
from glidemq_orchestrate.spark.source.options import Link
from glidemq_orchestrate.spark.source.partitions import flows as ops
from glidemq_orchestrate.spark.source.partitions.flows import FlowSpan, ListedFlow
from glidemq_orchestrate.spark.source.partitions.part import packed
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire.codec import encode

Part: TypeAlias = tuple[FlowSpan, ...]
Row: TypeAlias = Sequence[Any]


def plan(link: Link, wanted: Scan) -> list[Part]:
    """The parts in which the flows are read, with small parts combined."""
    return _plan(link, wanted, wanted.rows)


def plan_nodes(link: Link, wanted: Scan) -> list[Part]:
    """The parts in which the nodes are read, each with flows of about the wanted number of nodes."""
    if wanted.flow_ids is not None:
        return _plan(link, wanted, max(1, wanted.rows // 100))
    rough = link.ask(lambda: ops.plan(link.prefix, wanted.flows, wanted.rows))
    mean = link.ask(lambda: ops.mean_size(link.prefix, rough))
    return _plan(link, wanted, max(1, wanted.rows // mean))


def rows(link: Link, part: Part, wanted: Scan) -> Iterator[list[Row]]:
    """The rows of flows, page by page."""
    for flows in _pages(link, part, wanted):
        if flows:
            yield [_row(flow) for flow in flows]


def node_rows(link: Link, part: Part, wanted: Scan) -> Iterator[list[Row]]:
    """The rows of nodes, page by page."""
    states = None if wanted.states is None else frozenset(wanted.states)
    for flows in _pages(link, part, wanted):
        gathered: list[Row] = []
        for flow in flows:
            for nodes in _nodes(link, flow):
                gathered += [
                    _node_row(flow, one) for one in nodes if states is None or one.status.state in states
                ]
                if len(gathered) >= 1000:
                    yield gathered
                    gathered = []
        if gathered:
            yield gathered


def _plan(link: Link, wanted: Scan, size: int) -> list[Part]:
    found = link.ask(lambda: ops.plan(link.prefix, wanted.flows, size))
    return list(packed(found, [span.size for span in found], size))


def _pages(link: Link, part: Part, wanted: Scan) -> Iterator[list[ListedFlow]]:
    for span in part:
        yield from link.pages(partial(ops.read, link.prefix, span, wanted.flows))


def _nodes(link: Link, flow: ListedFlow) -> Iterator[list[TimedNode]]:
    seen: set[str] = set()
    for found in link.pages(partial(ops.nodes, flow), "0"):
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
