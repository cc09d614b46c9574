"""``glidemq flow``: submit, inspect, watch, cancel and rerun flows."""

from __future__ import annotations

import typer

from glidemq_orchestrate.cli.flow.changing import (
    cancel,
    cancel_node,
    complete_node,
    rerun,
    restart,
    retry,
    skip_node,
)
from glidemq_orchestrate.cli.flow.files import graph, plan, schema, submit
from glidemq_orchestrate.cli.flow.follow import watch
from glidemq_orchestrate.cli.flow.listing import list_
from glidemq_orchestrate.cli.flow.options import EXIT_CODES
from glidemq_orchestrate.cli.flow.showing import failures, history, node, show

flow_app = typer.Typer(
    name="flow",
    help=f"Submit, inspect, watch, cancel and rerun flows.\n\n{EXIT_CODES}",
    no_args_is_help=True,
)
flow_app.command(epilog=EXIT_CODES)(submit)
flow_app.command()(show)
flow_app.command(epilog=EXIT_CODES)(watch)
flow_app.command("list")(list_)
flow_app.command()(cancel)
flow_app.command(epilog=EXIT_CODES)(retry)
flow_app.command(epilog=EXIT_CODES)(restart)
flow_app.command(epilog=EXIT_CODES)(rerun)
flow_app.command("cancel-node")(cancel_node)
flow_app.command("complete-node")(complete_node)
flow_app.command("skip-node")(skip_node)
flow_app.command()(plan)
flow_app.command()(history)
flow_app.command()(failures)
flow_app.command()(graph)
flow_app.command()(node)
flow_app.command()(schema)
