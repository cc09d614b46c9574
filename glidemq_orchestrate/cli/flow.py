"""``glidemq flow``: submit flows, look at them, watch and steer them."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from glidemq_orchestrate.cli import flow_view as view
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, reports_errors, say, say_json, seconds
from glidemq_orchestrate.clients.producer import Flow, FlowProducer
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.forms.drawing import FOLD_FROM, dot, mermaid
from glidemq_orchestrate.flows.spec import FlowSpec, FlowState
from glidemq_orchestrate.keys import DEFAULT_PREFIX
from glidemq_orchestrate.names import shown

INPUTS_SHOWN: Final = 20
LOG_LINES: Final = 100
_AGE: Final = re.compile(r"([0-9]+)([smhdw])\Z")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

EXIT_CODES: Final = """
Exit codes:

0 done, or the flow that was waited for completed

1 the flow failed or was cancelled, or the server refused

2 the request is wrong

3 --timeout was over before the flow ended; the flow goes on

130 interrupted; the flow goes on
"""

flow_app = typer.Typer(
    name="flow",
    help=f"Submit flows, look at them, watch and steer them.\n\n{EXIT_CODES}",
    no_args_is_help=True,
)

FlowIdArgument = Annotated[str, typer.Argument(metavar="FLOW_ID", help="The flow's id; see flow list.")]
Wait = Annotated[bool, typer.Option(help="Return when the flow has ended; its end is the exit code.")]
Watch = Annotated[bool, typer.Option(help="Show the flow live while it is waited for, in a terminal.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=seconds(), metavar="SECONDS", help="Longest time to wait; then exit code 3. The flow goes on."
    ),
]


class Format(StrEnum):
    """In what a flow can be drawn."""

    MERMAID = "mermaid"
    DOT = "dot"


@flow_app.command("submit", epilog=EXIT_CODES)
@reports_errors
def flow_submit(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Flow file, YAML or JSON; `glidemq flow schema` prints its schema."
        ),
    ],
    url: Url = None,
    flow_id: Annotated[
        str | None, typer.Option("--id", help="Submit under this id; a repeat attaches to what is there.")
    ] = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    retry_failed: Annotated[
        bool, typer.Option(help="If it is there and failed, run again what did not complete.")
    ] = False,
    restart: Annotated[bool, typer.Option(help="If it is there and has ended, run all of it again.")] = False,
    require_workers: Annotated[bool, typer.Option(help="Refuse when no live worker can run it.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Submit a flow, all of it or nothing, and watch it to its end.

    A minimal file: {"name": "nightly", "nodes": [{"name": "a", "queue": "etl", "job": "clean"}]}. With
    --no-wait the command returns as soon as the flow is there.
    """
    spec = FlowSpec.from_file(file)
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.submit(
            spec,
            flow_id=flow_id,
            on_existing="restart" if restart else "retry_failed" if retry_failed else "attach",
            require_workers=require_workers,
        )
        _show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


@flow_app.command("show")
@reports_errors
def flow_show(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a flow as a tree: states, times, attempts, and the critical path.

    What a node fans out to is indented below it; what joins the branches goes on where they began. Nodes that
    differ only by numbers are folded: clean[0..999]. The critical path (marked with a diamond) is the chain
    of nodes that decided when the flow ended.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        view.show(flows.get(flow_id), as_json=as_json)


@flow_app.command("watch", epilog=EXIT_CODES)
@reports_errors
def flow_watch(
    flow_id: FlowIdArgument,
    url: Url = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION", help="Print only what changed after this position of an earlier watch."
        ),
    ] = None,
    timeout: Timeout = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print a line for each change, also in a terminal.")
    ] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each change, one a line.")
    ] = False,
) -> None:
    """Follow a flow until it ends: live as a tree in a terminal, else a line for each change.

    With --json, node changes have node, state, at, attempts, reason, progress and position; the last line
    has flow instead of node. Going on with --after tells every difference once, however long ago that was.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        if as_json or lines or after is not None or not console.is_terminal:
            view.print_changes(flow, after=after, as_json=as_json, timeout=timeout)
        view.follow(flow, live=True, as_json=False, timeout=timeout)


@flow_app.command("list")
@reports_errors
def flow_list(
    url: Url = None,
    state: Annotated[FlowState | None, typer.Option(help="Only flows in this state.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE", help="Only flows with this label, such as dag=nightly.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="Submitted since: 90m, 2h, 7d, or 2026-01-31T06:00+01:00."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Most flows to list.")] = 20,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """List flows, the newest first."""
    filters: dict[str, Any] = {"state": state, "label": _label(label), "since": _since(since), "limit": limit}
    with FlowProducer(url, prefix=prefix) as flows:
        found = list(flows.list(**filters))
    if as_json:
        say_json([asdict(flow) for flow in found])
    elif not found:
        console.print("No flows" + (" that pass all filters." if state or label or since else " yet."))
    else:
        console.print(view.flow_table(found))


@flow_app.command("cancel")
@reports_errors
def flow_cancel(
    flow_id: FlowIdArgument,
    url: Url = None,
    reason: Annotated[str, typer.Option(help="Why; readers of the flow see it.")] = "by command line",
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End every node that has not ended; running handlers are told. An ended flow stays as it is."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.cancel(reason)
        view.show(flow, as_json=as_json)


@flow_app.command("retry", epilog=EXIT_CODES)
@reports_errors
def flow_retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again what did not complete of a failed or cancelled flow; completed nodes keep their results."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.retry_failed()
        _show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


@flow_app.command("restart", epilog=EXIT_CODES)
@reports_errors
def flow_restart(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run all of an ended flow again; its results are forgotten. A flow that runs is left alone."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.restart()
        _show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


@flow_app.command("graph")
@reports_errors
def flow_graph(
    source: Annotated[str, typer.Argument(metavar="FILE|FLOW_ID", help="A flow file, or the id of a flow.")],
    url: Url = None,
    format_: Annotated[
        Format, typer.Option("--format", help="For Markdown pages, or for Graphviz.")
    ] = Format.MERMAID,
    fold: Annotated[
        int, typer.Option(help="So many nodes and more that differ by numbers are drawn as one; 0: never.")
    ] = FOLD_FROM,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Draw a flow as Mermaid or DOT; that of a submitted flow has the states as colours.

    For example: glidemq flow graph nightly.yaml --format dot | dot -Tsvg > nightly.svg
    """
    if source.endswith((".yaml", ".yml", ".json")) or _is_file(source):
        spec = FlowSpec.from_file(source)
        name, nodes = spec.name, list[Any](check_flow(spec).nodes)
    else:
        with FlowProducer(url, prefix=prefix) as flows:
            flow = flows.get(source)
            name, nodes = flow.status().name, list[Any](flow.nodes())
    drawn = (
        mermaid(nodes, at_least=fold or None)
        if format_ is Format.MERMAID
        else dot(name, nodes, at_least=fold or None)
    )
    say(drawn, lines=True, end="")


@flow_app.command("node")
@reports_errors
def flow_node(
    flow_id: FlowIdArgument,
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
    url: Url = None,
    full: Annotated[bool, typer.Option("--full", help="Show long values and all inputs in full.")] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show a node: its data, inputs, result, attempts, times, reason and last log lines.

    Data and results may be confidential; they are printed.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        node = flow.node(name)
        wanted = node.after if full or as_json else node.after[:INPUTS_SHOWN]
        inputs = dict(flow.results(wanted))
    with Queue(node.queue, url, prefix=prefix) as queue:
        job, logs = queue.get_job(node.job_id), queue.logs(node.job_id, limit=LOG_LINES)
    row = asdict(node) | {
        "seconds": node.seconds, "data": job.data, "inputs": inputs, "result": job.result, "logs": logs.lines
    }  # fmt: skip
    if as_json:
        say_json(row)
        return
    console.print(view.node_table(row, full=full))
    if len(wanted) < len(node.after):
        console.print(f"{len(node.after) - len(wanted):,} more inputs; --full shows all", style="dim")


@flow_app.command("schema")
@reports_errors
def flow_schema() -> None:
    """Print the JSON Schema of flow files, for editors and for checks in CI."""
    from glidemq_orchestrate.flows.forms.file import schema_text  # noqa: PLC0415  imports pydantic

    say(schema_text(), lines=True, end="")


def _show_or_follow(flow: Flow, *, wait: bool, watch: bool, timeout: float | None, as_json: bool) -> None:
    if wait:
        view.follow(flow, live=watch, as_json=as_json, timeout=timeout)
    view.show(flow, as_json=as_json)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long a name, say
        return False


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, mark, value = text.partition("=")
    if not mark:
        raise ConfigurationError(f"--label must be KEY=VALUE, such as dag=nightly, got {shown(text)}")
    return key, value


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if age := _AGE.match(text):
            return datetime.now(UTC) - timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
        moment = datetime.fromisoformat(text)
        return moment.astimezone() if moment.tzinfo is None else moment
    except (ValueError, OverflowError) as exc:
        raise ConfigurationError(
            f"--since must be an age such as 90m, 2h or 7d, or a time such as 2026-01-31T06:00, "
            f"got {shown(text)}"
        ) from exc
