"""``glidemq flow node``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.flow.cells import short, wait_json
from glidemq_orchestrate.cli.flow.options import FlowIdArgument
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

INPUTS_SHOWN: Final = 20
LOG_LINES: Final = 100
SHOWN_CHARACTERS: Final = 500


@reports_errors
def node(
    flow_id: FlowIdArgument,
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    url: Url = None,
    full: Annotated[bool, typer.Option("--full", help="Show long values and all inputs in full.")] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show a node: its data, inputs, result, attempts, times, reason and last log lines.

    The output contains data and results, which may be confidential.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        node = flow.node(name)
        wanted = node.after if full or as_json else node.after[:INPUTS_SHOWN]
        inputs, waits = dict(flow.results(wanted)), flow.waits([node])
    with Queue(node.queue, url, prefix=prefix) as queue:
        job = queue.get_job(node.job_id, lenient=True)
        logs = queue.logs(node.job_id, offset=-LOG_LINES, limit=LOG_LINES)
    row = asdict(node) | {
        "seconds": node.seconds, "data": job.data, "inputs": inputs, "result": job.result, "logs": logs.lines
    }  # fmt: skip
    if as_json:
        print_json(row | {"wait": wait_json(waits, node)})
        return
    row |= {"waits": str(waits[name])} if name in waits else {}
    console.print(details(row, full=full))
    if len(wanted) < len(node.after):
        console.print(f"{len(node.after) - len(wanted):,} more inputs; --full shows all", style="dim")


def details(row: Mapping[str, Any], *, full: bool) -> Table:
    """The fields of a node, one per line; long values are cut unless ``full``."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        if value in (None, "", [], {}, ()) and name not in ("data", "result"):
            continue
        if isinstance(value, Mapping) and name == "inputs":
            for key, part in value.items():
                table.add_row(f"input {key}", Text(short(part, None if full else SHOWN_CHARACTERS)))
            continue
        text = "\n".join(value) if name == "logs" else short(value, None if full else SHOWN_CHARACTERS)
        table.add_row(name.replace("_", " "), Text(text))
    return table
