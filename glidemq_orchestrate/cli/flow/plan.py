"""What a submission would run and keep."""

from __future__ import annotations

from dataclasses import asdict

from glidemq_orchestrate.cli.shell import say, say_json
from glidemq_orchestrate.flows.plan import FlowPlan


def print_plan(plan: FlowPlan, *, as_json: bool) -> None:
    """Print a line for each node that would run, with the reason, and what is kept and dropped."""
    if as_json:
        say_json(asdict(plan))
        return
    for name, reason in plan.runs.items():
        say(f"run   {name}  ({reason})")
    for name in plan.drops:
        say(f"drop  {name}")
    say(f"{len(plan.runs):,} to run in generation {plan.generation}, {len(plan.keeps):,} kept")
