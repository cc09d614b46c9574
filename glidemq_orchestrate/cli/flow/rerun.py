"""``glidemq flow retry``, ``glidemq flow restart`` and ``glidemq flow rerun``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.cells import named
from glidemq_orchestrate.cli.flow.follow import show_or_follow
from glidemq_orchestrate.cli.flow.options import (
    Error,
    FlowIdArgument,
    Generation,
    Nodes,
    Pattern,
    Request,
    State,
    Timeout,
    Wait,
    Watch,
)
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, reports_errors, say
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again the nodes of a failed or cancelled flow that did not complete; the others keep results.

    With a mended flow file: glidemq flow submit FILE --id FLOW_ID --retry-failed.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        before = flow.status().state
        failed = [node.name for node in flow.nodes() if node.state is JobState.FAILED]
        flow.retry_failed(generation=generation)
        changed = failed if before in (FlowState.FAILED, FlowState.CANCELLED) else []
        if not as_json:
            say(named("Run again", changed) if changed else _unchanged(flow.id, before))
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json, changed=changed)


def _unchanged(flow_id: str, state: FlowState) -> str:
    if state is FlowState.COMPLETED:
        return f"Nothing was changed: the flow has completed. All of it anew: glidemq flow restart {flow_id}"
    return "Nothing was changed: the flow runs."


@reports_errors
def restart(
    flow_id: FlowIdArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Only from these nodes on; the others keep their results."),
    ] = None,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    request: Request = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run all of a flow again, or from some nodes on, as its next generation.

    A running flow is cancelled first. With nodes, only they run, what follows them and what did not complete.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.restart(nodes=nodes or None, request=request, generation=generation)
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


@reports_errors
def rerun(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    error: Error = "",
    only: Annotated[
        bool, typer.Option("--only", help="Only these nodes, not those that follow them.")
    ] = False,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    request: Annotated[
        str, typer.Option(metavar="TEXT", help="Who asks: with the same text a repeat changes nothing.")
    ] = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run nodes again that have ended, with all nodes that follow them; also while the flow runs.

    glidemq flow rerun FLOW_ID clean-3 load, or: glidemq flow rerun FLOW_ID --error '*timed out*'.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.rerun(
            nodes=nodes or (),
            pattern=pattern,
            state=state,
            error=error,
            dependents=not only,
            request=request,
            generation=generation,
        )
        if not as_json:
            say(named("Run again", changed))
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json, changed=changed)
