"""``glidemq flow cancel``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.options import FlowIdArgument, Generation
from glidemq_orchestrate.cli.flow.show import print_flow
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def cancel(
    flow_id: FlowIdArgument,
    url: Url = None,
    reason: Annotated[str, typer.Option(help="Reason to show with the flow.")] = "from the command line",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Cancel a flow: end all unfinished nodes and stop running handlers. An ended flow is not changed."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.cancel(reason, generation=generation)
        print_flow(flow, as_json=as_json)
