"""``glidemq flow submit``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated

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
from glidemq_orchestrate.cli.flow.plan import print_plan
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, reports_errors
from glidemq_orchestrate.cli.source import FLOW_HELP, Arguments, flow_of
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


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
