"""``glidemq flow show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from glidemq_orchestrate.cli.flow.cells import status_json, wait_json
from glidemq_orchestrate.cli.flow.options import FlowIdArgument
from glidemq_orchestrate.cli.flow.view import flow_view
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, reports_errors
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
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
        console.print(flow_view(status, nodes, now=flow.now(), waits=waits))
        if not is_supervised:
            console.print(_unsupervised(flow.home), style="yellow", markup=False, highlight=False)
        return
    shown = [{**asdict(node), "seconds": node.seconds, "wait": wait_json(waits, node)} for node in nodes]
    more = {} if changed is None else {"changed": list(changed)}
    about = {"flow": status_json(status), "home": flow.home, "supervised": is_supervised}
    print_json(about | {"nodes": shown, "results": dict(flow.results())} | more)


def _unsupervised(home: str) -> str:
    return (
        f"Nobody supervises queue {home}, the home of this flow: it does not advance when Node workers end "
        f"its nodes. Fix: run a Python worker for a queue of the flow, or: glidemq supervise --queue {home}"
    )
