"""``glidemq flow cancel-node``, ``complete-node`` and ``skip-node``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.cells import named
from glidemq_orchestrate.cli.flow.options import Error, FlowIdArgument, Generation, Nodes, Pattern, State
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, read_json, reports_errors, say, say_json
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

Reason = Annotated[str, typer.Option(help="Reason, shown with the nodes.")]


@reports_errors
def cancel_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    reason: Reason = "by command line",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End nodes that have not ended as failed; what follows, their policies and rules decide."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.cancel_node(
            nodes=nodes or (), reason=reason, pattern=pattern, state=state, generation=generation
        )
        _tell(flow, "Cancelled", changed, as_json=as_json)


@reports_errors
def complete_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    result: Annotated[str, typer.Option(metavar="JSON", help="The result.")] = "null",
    pattern: Pattern = "",
    state: State = "",
    error: Error = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End nodes as completed with a result, without running them; nodes that follow run with it, or again.

    Also after the flow has ended: then it runs again.
    """
    value = read_json(result, "result")
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.complete_node(
            nodes=nodes or (),
            result=value,
            pattern=pattern,
            state=state,
            error=error,
            generation=generation,
        )
        _tell(flow, "Completed", changed, as_json=as_json)


@reports_errors
def skip_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    error: Error = "",
    reason: Reason = "by command line",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End nodes as skipped without running them; rules decide whether what follows is skipped too.

    Also after the flow has ended: then it runs again.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.skip_node(
            nodes=nodes or (),
            reason=reason,
            pattern=pattern,
            state=state,
            error=error,
            generation=generation,
        )
        _tell(flow, "Skipped", changed, as_json=as_json)


def _tell(flow: Flow, what: str, changed: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        say_json({"flow": flow.id, "generation": flow.generation, "changed": list(changed)})
    else:
        say(named(what, changed))
