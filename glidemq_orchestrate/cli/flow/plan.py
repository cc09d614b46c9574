"""``glidemq flow plan``: what a submission would run and keep."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, reports_errors, say, say_json
from glidemq_orchestrate.clients.producer import FlowProducer
from glidemq_orchestrate.flows.plan import FlowPlan
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.keys import DEFAULT_PREFIX


@reports_errors
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Flow file, YAML or JSON.")],
    flow_id: Annotated[str, typer.Option("--id", help="The id of the flow that is there.")],
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Tell what `flow submit FILE --id ID --retry-failed` would run and keep, and why. Changes nothing."""
    with FlowProducer(url, prefix=prefix) as flows:
        print_plan(flows.plan(FlowSpec.from_file(file), flow_id=flow_id), as_json=as_json)


def print_plan(found: FlowPlan, *, as_json: bool) -> None:
    """Print a line for each node that would run, with the reason, and what is kept and dropped."""
    if as_json:
        say_json(asdict(found))
        return
    for name, reason in found.runs.items():
        say(f"run   {name}  ({reason})")
    for name in found.drops:
        say(f"drop  {name}")
    say(f"{len(found.runs):,} to run in generation {found.generation}, {len(found.keeps):,} kept")
