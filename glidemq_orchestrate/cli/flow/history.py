"""``glidemq flow history``."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.flow.cells import short, status_json
from glidemq_orchestrate.cli.flow.options import FlowIdArgument
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def history(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """List the generations of a flow, oldest first: how each ended, and the key that began it.

    Only the last one, the current, has results.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        found = flows.get(flow_id).history()
    if as_json:
        print_json([status_json(one) for one in found])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("generation", "state", "nodes", "failed", "submitted", "idempotency key", "reason"):
        table.add_column(title, justify="right" if title in ("nodes", "failed") else "left", overflow="fold")
    for one in found:
        began = "" if one.created_at is None else one.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        nodes, failed = f"{one.completed:,}/{one.total:,}", f"{one.failed:,}"
        cells = (str(one.generation), str(one.state), nodes, failed, began, one.idempotency_key)
        table.add_row(*map(Text, (*cells, short(one.reason, 80))))
    console.print(table)
