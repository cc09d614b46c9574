"""``glidemq flow plan``: what a submission would run and keep."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, print_json, print_text, reports_errors
from glidemq_orchestrate.cli.source import FLOW_HELP, Arguments, flow_of
from glidemq_orchestrate.clients.flows import FlowProducer
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
    with FlowProducer(url, prefix=prefix) as flows:
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
