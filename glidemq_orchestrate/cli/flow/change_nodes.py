"""``glidemq flow cancel-node``, ``complete-node`` and ``skip-node``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.cells import changed_line
from glidemq_orchestrate.cli.flow.options import Error, FlowIdArgument, Generation, Nodes, Pattern, State
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    Url,
    print_json,
    print_text,
    read_json,
    reports_errors,
)
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

Reason = Annotated[str, typer.Option(help="Reason to show with the nodes.")]


@reports_errors
def cancel_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    reason: Reason = "from the command line",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Cancel unfinished nodes: they end as failed; policies and rules apply to their dependents."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.cancel_node(
            nodes=nodes or (), reason=reason, pattern=pattern, state=state, generation=generation
        )
        _print_changed(flow, "Cancelled", changed, as_json=as_json)


@reports_errors
def complete_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    result: Annotated[str, typer.Option(metavar="JSON", help="Result of the nodes, as JSON.")] = "null",
    pattern: Pattern = "",
    state: State = "",
    error: Error = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End nodes as completed with a result, without running them; their dependents run, or run again.

    If the flow has ended, it continues.
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
        _print_changed(flow, "Completed", changed, as_json=as_json)


@reports_errors
def skip_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    error: Error = "",
    reason: Reason = "from the command line",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End nodes as skipped without running them; rules decide whether their dependents are skipped too.

    If the flow has ended, it continues.
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
        _print_changed(flow, "Skipped", changed, as_json=as_json)


def _print_changed(flow: Flow, what: str, changed: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"flow": flow.id, "generation": flow.generation, "changed": list(changed)})
    else:
        print_text(changed_line(what, changed))
