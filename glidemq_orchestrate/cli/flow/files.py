"""Commands for a flow file or a function that returns a flow: submit, plan, graph, schema."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from glidemq_orchestrate.cli.flow.follow import show_or_follow
from glidemq_orchestrate.cli.flow.options import (
    IdempotencyKey,
    KeepFlow,
    Lease,
    Owned,
    Timeout,
    WaitForEnd,
    WatchLive,
)
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, print_json, print_text, reports_errors
from glidemq_orchestrate.cli.source import FLOW_HELP, Arguments, flow_of, is_source, located
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.forms.drawing import FOLD_FROM, dot, mermaid
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.plan import FlowPlan
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def plan(
    file: Annotated[str, typer.Argument(metavar="FLOW", help=FLOW_HELP)],
    flow_id: Annotated[str, typer.Option("--id", help="Id of the existing flow.")],
    arguments: Arguments = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Print what `flow submit FLOW --id ID --retry-failed` would run and keep, and why. Changes nothing."""
    spec = flow_of(file, arguments)
    with FlowProducer(url, prefix=prefix) as flows, located(file):
        print_plan(flows.plan(spec, flow_id=flow_id), as_json=as_json)


def print_plan(found: FlowPlan, *, as_json: bool) -> None:
    """Print a line for each node that would run, with the reason, and one for each that would be dropped."""
    if as_json:
        print_json(asdict(found))
        return
    for name, reason in found.runs.items():
        print_text(f"run   {name}  ({reason})")
    for name in found.drops:
        print_text(f"drop  {name}")
    print_text(f"{len(found.runs):,} to run in generation {found.generation}, {len(found.keeps):,} kept")


@reports_errors
def submit(
    file: Annotated[str, typer.Argument(metavar="FLOW", help=FLOW_HELP)],
    arguments: Arguments = None,
    url: Url = None,
    flow_id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the flow; if it exists, attach to it. Default: a new id."),
    ] = None,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            help="If the flow exists, run again the nodes that did not complete or were changed in the file."
        ),
    ] = False,
    restart: Annotated[
        bool, typer.Option(help="If the flow exists, cancel it and run all nodes again.")
    ] = False,
    idempotency_key: IdempotencyKey = "",
    owner: Owned = None,
    lease: Lease = None,
    keep: KeepFlow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what --retry-failed would run and keep, and why.")
    ] = False,
    require_workers: Annotated[bool, typer.Option(help="Refuse a flow that no live worker can run.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Submit a flow, all or nothing, and watch it until it ends.

    A minimal file: {"name": "nightly", "nodes": [{"name": "a", "queue": "etl", "job": "clean"}]}. A function
    instead of a file: glidemq flow submit mypackage.flows:build --arg day=2026-01-01. With --no-wait the
    command returns as soon as the flow is submitted.
    """
    if restart and retry_failed:
        raise typer.BadParameter("is mutually exclusive with --retry-failed", param_hint="--restart")
    if idempotency_key and flow_id is None:
        raise typer.BadParameter(
            "requires --id: a repeat would submit another flow", param_hint="--idempotency-key"
        )
    owned = _owner(owner, lease, keep=keep)
    spec = flow_of(file, arguments)
    with FlowProducer(url, prefix=prefix) as flows:
        if dry_run:
            if flow_id is None:
                raise typer.BadParameter("is required with --dry-run", param_hint="--id")
            print_plan(flows.plan(spec, flow_id=flow_id), as_json=as_json)
            return
        with located(file):
            flow = flows.submit(
                spec,
                flow_id=flow_id,
                on_existing="restart" if restart else "retry_failed" if retry_failed else "attach",
                idempotency_key=idempotency_key,
                owner=owned,
                require_workers=require_workers,
            )
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


def _owner(name: str | None, lease: float | None, *, keep: bool) -> Owner | None:
    """The owner in the options, if any."""
    if name is None:
        for option, is_given in (("--lease", lease is not None), ("--keep", keep)):
            if is_given:
                raise typer.BadParameter("requires --owner", param_hint=option)
        return None
    owner = Owner(name, on_expiry="keep" if keep else "cancel")
    return owner if lease is None else replace(owner, lease=timedelta(seconds=lease))


class Format(StrEnum):
    """The formats of drawings."""

    MERMAID = "mermaid"
    DOT = "dot"


@reports_errors
def graph(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FLOW|FLOW_ID",
            help="A flow file, package.module:function, or the id of a flow on the server.",
        ),
    ],
    arguments: Arguments = None,
    url: Url = None,
    format_: Annotated[
        Format, typer.Option("--format", help="Format: Mermaid for Markdown, DOT for Graphviz.")
    ] = Format.MERMAID,
    fold: Annotated[
        int,
        typer.Option(help="Draw this many nodes or more as one if they differ only by a number; 0: never."),
    ] = FOLD_FROM,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Draw a flow as Mermaid or DOT. Colours show the states of a submitted flow.

    Example: glidemq flow graph nightly.yaml --format dot | dot -Tsvg > nightly.svg
    """
    if is_source(source):
        spec = flow_of(source, arguments)
        with located(source):
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
    print_text(drawn, lines=True, end="")


@reports_errors
def schema() -> None:
    """Print the JSON Schema of flow files, for editors and CI."""
    from glidemq_orchestrate.flows.forms.file import schema_text  # noqa: PLC0415  imports pydantic

    print_text(schema_text(), lines=True, end="")
