"""``glidemq flow retry``, ``glidemq flow restart`` and ``glidemq flow rerun``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.flow.cells import changed_line
from glidemq_orchestrate.cli.flow.follow import show_or_follow
from glidemq_orchestrate.cli.flow.options import (
    Error,
    FlowIdArgument,
    Generation,
    IdempotencyKey,
    Nodes,
    Pattern,
    State,
    Timeout,
    WaitForEnd,
    WatchLive,
)
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, print_text, reports_errors
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again the nodes of a failed or cancelled flow that did not complete; the others keep their results.

    With a corrected flow file: glidemq flow submit FILE --id FLOW_ID --retry-failed.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        before = flow.status().state
        failed = [node.name for node in flow.nodes() if node.state is JobState.FAILED]
        flow.retry_failed(generation=generation)
        changed = failed if before in (FlowState.FAILED, FlowState.CANCELLED) else []
        if not as_json:
            print_text(changed_line("Run again", changed) if changed else _unchanged(flow.id, before))
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json, changed=changed)


def _unchanged(flow_id: str, state: FlowState) -> str:
    if state is FlowState.COMPLETED:
        return f"Nothing was changed: the flow has completed. To run it again: glidemq flow restart {flow_id}"
    return "Nothing was changed: the flow is running."


@reports_errors
def restart(
    flow_id: FlowIdArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...", help="Run only from these nodes on; the others keep their results."
        ),
    ] = None,
    url: Url = None,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    idempotency_key: IdempotencyKey = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run a flow again, all of it or from some nodes on, as its next generation.

    A running flow is cancelled first. If nodes are named, only these run, their dependents, and nodes that
    did not complete.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.restart(nodes=nodes or None, idempotency_key=idempotency_key, generation=generation)
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
        bool, typer.Option("--only", help="Run only these nodes, without their dependents.")
    ] = False,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    idempotency_key: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Idempotency key: a repeat with the same text changes nothing."),
    ] = "",
    generation: Generation = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run ended nodes again, with all their dependents, even while the flow is running.

    Examples: glidemq flow rerun FLOW_ID clean-3 load; glidemq flow rerun FLOW_ID --error '*timed out*'.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        changed = flow.rerun(
            nodes=nodes or (),
            pattern=pattern,
            state=state,
            error=error,
            dependents=not only,
            idempotency_key=idempotency_key,
            generation=generation,
        )
        if not as_json:
            print_text(changed_line("Run again", changed))
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json, changed=changed)
