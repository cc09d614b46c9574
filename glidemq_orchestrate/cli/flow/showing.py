"""Commands that show a flow: show, history, failures, node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.completion import node_names
from glidemq_orchestrate.cli.failures import Most, print_failures
from glidemq_orchestrate.cli.flow.options import FlowIdArgument
from glidemq_orchestrate.cli.flow.view import flow_view, short, status_json, wait_json
from glidemq_orchestrate.cli.handler_code import code_row, code_text
from glidemq_orchestrate.cli.history import history_lines
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    Url,
    console,
    print_json,
    print_rows,
    reports_errors,
)
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import ResultRemoved
from glidemq_orchestrate.flows.nodes import split_name
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def show(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a flow as a tree: states, times, attempts, and the critical path.

    Nodes that a node fans out to are indented below it; the node that joins them is at its level again. Nodes
    that differ only by a number are folded: clean[0..999]. The critical path, marked with a diamond, is the
    chain of nodes that determined the end of the flow.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        print_flow(flows.get(flow_id), as_json=as_json)


def print_flow(flow: Flow, *, as_json: bool, changed: Sequence[str] | None = None) -> None:
    """Print the present state of a flow; as JSON, with the names of the nodes that the command changed."""
    status, nodes = flow.status(), flow.nodes()
    waits, is_supervised = flow.waits(nodes), status.state.is_terminal or flow.is_supervised()
    if not as_json:
        print_rows(flow_view(status, nodes, now=flow.now(), waits=waits))
        if not is_supervised:
            console.print(_unsupervised(flow.home), style="yellow", markup=False, highlight=False)
        return
    shown = [{**asdict(node), "seconds": node.seconds, "wait": wait_json(waits, node)} for node in nodes]
    more = {} if changed is None else {"changed": list(changed)}
    about = {"flow": status_json(status), "home": flow.home, "supervised": is_supervised}
    print_json(about | {"nodes": shown, "results": dict(flow.results())} | more)


def _unsupervised(home: str) -> str:
    return (
        f"No live Python worker or supervisor serves queue {home}, the home of this flow. Fix: run a worker "
        f"for one of its queues; if only Node workers serve it: glidemq supervise --queue {home}"
    )


@reports_errors
def history(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """List the generations of a flow, oldest first, with their outcome and idempotency key.

    Only the last generation, which is the current one, has results.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        found = flows.get(flow_id).history()
    if as_json:
        print_json([status_json(one) for one in found])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("generation", "state", "nodes", "failed", "submitted", "idempotency key", "reason"):
        table.add_column(title, justify="right" if title in ("nodes", "failed") else "left", overflow="fold")
    for one in found:
        began = "" if one.created_at is None else one.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        nodes, failed = f"{one.completed:,}/{one.total:,}", f"{one.failed:,}"
        cells = (str(one.generation), str(one.state), nodes, failed, began, one.idempotency_key)
        table.add_row(*map(Text, (*cells, short(one.reason, 80))))
    console.print(table)


@reports_errors
def failures(
    flow_id: FlowIdArgument,
    most: Most = 20,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Group the failed nodes of a flow by cause: how many, and how many other nodes they hold back."""
    with FlowProducer(url, prefix=prefix) as flows:
        print_failures(flows.get(flow_id).failures(), most, as_json=as_json)


COUNTS: Final = ("attempts", "reruns", "lost_attempts")  # shown if not 0
INPUTS_SHOWN: Final = 20
A_SECOND: Final = timedelta(seconds=1)
LOG_LINES: Final = 100
ALL_LINES: Final = 11_000  # of an array, to find those of an element
SHOWN_CHARACTERS: Final = 500
_MORE: Final = "; --full shows all"


@reports_errors
def node(
    flow_id: FlowIdArgument,
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=node_names)],
    url: Url = None,
    full: Annotated[bool, typer.Option("--full", help="Show long values and all inputs in full.")] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show a node: its code, data, inputs, result, attempts, times, reason, history and last log lines.

    An element of an array is NODE[POSITION], quoted for the shell: 'clean[4711]'.

    An input from after the last run of the node is marked as later (--json: later_inputs).
    The output contains data and results, which may be confidential.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        node = flow.node(name)
        wanted = node.after if full or as_json else node.after[:INPUTS_SHOWN]
        inputs, waits = _inputs(flow, wanted), flow.waits([node])
        dependencies = flow.nodes(wanted) if node.finished_at else []
        later = {one.name for one in dependencies if has_ended_since(one, node)}
    own = {} if node.removed else _of_job(node, flow, url, prefix)
    history = own.get("history")
    row = asdict(node) | {
        "seconds": node.seconds, "data": own.get("data"),
        "inputs": {name: value for name, value in inputs.items() if name not in later},
        "later_inputs": {name: value for name, value in inputs.items() if name in later},
        "result": own.get("result"), "history": history or [], "logs": own.get("logs", ()),
        "code": own.get("code", ""), "handler": own.get("handler"),
    }  # fmt: skip
    if as_json:
        print_json(row | {"wait": wait_json(waits, node)})
        return
    row |= {"history": history_lines(history) if history else "", "code": code_text(row), "handler": None} | (
        {"waits": str(waits[name])} if name in waits else {}
    )
    if node.state is JobState.COMPLETED and node.reason:
        row |= {"reason": f"{node.reason} (an earlier attempt)"}
    if node.removed:
        row = {name: value for name, value in row.items() if name not in ("data", "result")}
    console.print(details(row, full=full))
    if len(wanted) < len(node.after):
        console.print(f"{len(node.after) - len(wanted):,} more inputs; --full shows all", style="dim")


def _inputs(flow: Flow, names: Sequence[str]) -> dict[str, Any]:
    """The results of nodes, except those that were removed with their jobs."""
    try:
        return dict(flow.results(names))
    except ResultRemoved as exc:
        return dict(flow.results([name for name in names if name not in exc.names]))


def _of_job(node: NodeStatus, flow: Flow, url: str | None, prefix: str) -> dict[str, Any]:
    """What only the job of a node has, or the array of an element."""
    with Queue(node.queue, url, prefix=prefix) as queue:
        job = queue.get_job(node.job_id, lenient=True)
        element = split_name(node.name) if job.node != node.name else None
        kept = LOG_LINES if element is None else ALL_LINES
        logs = queue.logs(node.job_id, offset=-kept, limit=kept)
        history = queue.history(node.job_id)
        code = code_row(queue, job.name, None if element else job.data)
    if element is None:
        return {"data": job.data, "result": job.result, "history": history, "logs": logs.lines} | code
    array, index = flow.array(element[0]), element[1]
    lines = [line for line in logs.lines if line.startswith(f"[{index}] ")]
    result = array.results(index, index + 1).get(index)
    return {"data": array.item(index), "result": result, "logs": lines[-LOG_LINES:]} | code


def has_ended_since(dependency: NodeStatus, node: NodeStatus) -> bool:
    """Whether a dependency ended after the last run of a node, which so had another input or none.

    The times come from the clocks of two workers: less than a second does not count.
    """
    began, ended, changed = node.started_at, node.finished_at, dependency.finished_at
    return bool(began and ended and changed and changed > max(began + A_SECOND, ended))


def details(row: Mapping[str, Any], *, full: bool) -> Table:
    """The non-empty fields of a node, one per line; long values are cut unless ``full``."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        is_empty = value in (None, "", [], {}, ()) or value is False or (value == 0 and name in COUNTS)
        if is_empty and name not in ("data", "result"):
            continue
        if isinstance(value, Mapping) and name in ("inputs", "later_inputs"):
            for key, part in value.items():
                text = short(part, None if full else SHOWN_CHARACTERS, _MORE)
                about = "" if name == "inputs" else " (later than this run, which did not have it)"
                table.add_row(f"input {key}", Text(text + about))
            continue
        if name == "seconds":  # from when a worker received the job; it may have held it back
            value = f"≤ {value}"  # noqa: PLW2901
        if name in ("logs", "history", "code"):
            text = value if isinstance(value, str) else "\n".join(value)
        else:
            text = short(value, None if full else SHOWN_CHARACTERS, _MORE)
        table.add_row(name.replace("_", " "), Text(text))
    return table
