"""``glidemq flow``: submit, look at and steer flows."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from glidemq_orchestrate._flow_file import schema_text
from glidemq_orchestrate._view import flow_view
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, told
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flow import FlowOutcome, FlowSpec, FlowState, NodeStatus
from glidemq_orchestrate.keys import DEFAULT_PREFIX
from glidemq_orchestrate.producer import Flow, FlowProducer

flow_app = typer.Typer(name="flow", help="Submit flows and look at them.", no_args_is_help=True)


@flow_app.command("submit")
@told
def flow_submit(
    file: Annotated[
        Path, typer.Argument(help="Flow file, YAML or JSON: {name, nodes: [{name, queue, job, ...}]}.")
    ],
    url: Url = None,
    flow_id: Annotated[
        str | None, typer.Option("--id", help="Submit under this id; the same id attaches.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Watch the flow until it ends.")] = True,
    retry_failed: Annotated[
        bool, typer.Option(help="If it is there and failed, run again what did not complete.")
    ] = False,
    require_workers: Annotated[bool, typer.Option(help="Refuse when no live worker can run it.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Submit a flow, all or nothing, and watch it. Exit code 1 when it fails."""
    spec = FlowSpec.from_file(file)
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.submit(
            spec,
            flow_id=flow_id,
            on_existing="retry_failed" if retry_failed else "attach",
            require_workers=require_workers,
        )
        _follow(flow, as_json=as_json) if wait else _show(flow, as_json=as_json)


@flow_app.command("schema")
@told
def flow_schema() -> None:
    """Print the JSON Schema of flow files, for editors and checks in CI."""
    typer.echo(schema_text(), nl=False)


FlowIdArgument = Annotated[str, typer.Argument(metavar="FLOW_ID", help="The flow's id.")]


@flow_app.command("show")
@told
def flow_show(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a flow's state, counts and nodes."""
    with FlowProducer(url, prefix=prefix) as flows:
        _show(flows.get(flow_id), as_json=as_json)


@flow_app.command("watch")
@told
def flow_watch(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Follow a flow until it ends. Exit code 1 when it fails."""
    with FlowProducer(url, prefix=prefix) as flows:
        _follow(flows.get(flow_id), as_json=as_json)


@flow_app.command("cancel")
@told
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
        _show(flow, as_json=as_json)


@flow_app.command("retry")
@told
def flow_retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Annotated[bool, typer.Option(help="Watch the flow until it ends.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again what did not complete of a failed or cancelled flow; completed nodes keep their results."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.retry_failed()
        _follow(flow, as_json=as_json) if wait else _show(flow, as_json=as_json)


def _follow(flow: Flow, *, as_json: bool) -> None:
    """Watch a flow until it ends, then show it; the exit code tells whether it completed."""
    _watch(flow, quiet=as_json)
    _show(flow, as_json=as_json)
    if flow.status().state is not FlowState.COMPLETED:
        raise typer.Exit(1)


def _watch(flow: Flow, *, quiet: bool) -> None:
    if quiet or not console.is_terminal:
        flow.wait()
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while not (status := flow.status()).state.is_terminal:
            live.update(flow_view(status, flow.nodes()))
            _wait_a_little(flow)


def _wait_a_little(flow: Flow) -> None:
    try:
        flow.wait(timeout=timedelta(milliseconds=400))
    except GlideMQError as exc:
        if not exc.retryable:
            raise


def _show(flow: Flow, *, as_json: bool) -> None:
    outcome, nodes = flow.outcome(), flow.nodes()
    if as_json:
        typer.echo(json.dumps(_as_json(outcome, nodes), default=str, indent=2))
    else:
        console.print(flow_view(outcome.status, nodes))


def _as_json(outcome: FlowOutcome, nodes: list[NodeStatus]) -> dict[str, Any]:
    shown = [{**asdict(node), "seconds": node.seconds} for node in nodes]
    return {"flow": asdict(outcome.status), "nodes": shown, "results": dict(outcome.results)}
