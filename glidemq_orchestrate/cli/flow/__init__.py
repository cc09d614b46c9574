"""``glidemq flow``: submit, inspect, watch, cancel and rerun flows. A file for each command."""

from __future__ import annotations

import typer

from glidemq_orchestrate.cli.flow.cancel import cancel
from glidemq_orchestrate.cli.flow.change_nodes import cancel_node, complete_node, skip_node
from glidemq_orchestrate.cli.flow.graph import graph
from glidemq_orchestrate.cli.flow.history import history
from glidemq_orchestrate.cli.flow.list import list_
from glidemq_orchestrate.cli.flow.node import node
from glidemq_orchestrate.cli.flow.options import EXIT_CODES
from glidemq_orchestrate.cli.flow.plan import plan
from glidemq_orchestrate.cli.flow.rerun import rerun, restart, retry
from glidemq_orchestrate.cli.flow.schema import schema
from glidemq_orchestrate.cli.flow.show import show
from glidemq_orchestrate.cli.flow.submit import submit
from glidemq_orchestrate.cli.flow.watch import watch

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
flow_app.command()(graph)
flow_app.command()(node)
flow_app.command()(schema)
