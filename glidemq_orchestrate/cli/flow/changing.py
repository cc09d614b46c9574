"""Commands that change a flow: cancel, retry, restart, rerun; cancel-node, complete-node, skip-node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from glidemq_orchestrate.cli.completion import node_names
from glidemq_orchestrate.cli.failures import GroupOption, explain_unchanged
from glidemq_orchestrate.cli.flow.follow import show_or_follow
from glidemq_orchestrate.cli.flow.options import (
    Error,
    FlowIdArgument,
    GenerationOption,
    IdempotencyKey,
    Nodes,
    Pattern,
    State,
    Timeout,
    WaitForEnd,
    WatchLive,
)
from glidemq_orchestrate.cli.flow.showing import print_flow
from glidemq_orchestrate.cli.flow.view import changed_line
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    Url,
    errors,
    print_json,
    print_text,
    read_json,
    reports_errors,
)
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.flows.status import FlowState, NodeStatus
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def cancel(
    flow_id: FlowIdArgument,
    url: Url = None,
    reason: Annotated[str, typer.Option(help="Reason to show with the flow.")] = "from the command line",
    generation: GenerationOption = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Cancel a flow: end all unfinished nodes and stop running handlers. An ended flow is not changed."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.cancel(reason, generation=generation)
        print_flow(flow, as_json=as_json)


Reason = Annotated[str, typer.Option(help="Reason to show with the nodes.")]


@reports_errors
def cancel_node(
    flow_id: FlowIdArgument,
    nodes: Nodes = None,
    url: Url = None,
    pattern: Pattern = "",
    state: State = "",
    reason: Reason = "from the command line",
    generation: GenerationOption = None,
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
    generation: GenerationOption = None,
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
    generation: GenerationOption = None,
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


@reports_errors
def retry(
    flow_id: FlowIdArgument,
    group: GroupOption = None,
    url: Url = None,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    generation: GenerationOption = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again the nodes of a failed or cancelled flow that did not complete; the others keep their results.

    With --group: only the failed nodes of this group, with those that they held back, at most 1,000.

    With a corrected flow file: glidemq flow submit FILE --id FLOW_ID --retry-failed.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        status = flow.status()
        before = status.state
        kept: Sequence[str] = ()
        if group is None:
            nodes = flow.nodes()
            failed = [node.name for node in nodes if node.state is JobState.FAILED]
            kept = _completed_after(failed, nodes)
            flow.retry_failed(generation=generation)
            changed = failed if before in (FlowState.FAILED, FlowState.CANCELLED) else []
        else:
            changed = list(flow.retry_failures(group, generation=generation))
            if not changed:
                explain_unchanged(f"Flow {flow.id}", group, flow.failures())
        if not as_json:
            if changed or group is None:
                print_text(changed_line("Run again", changed) if changed else _unchanged(flow.id, before))
            if changed and kept:
                errors.print(
                    changed_line("Kept, although a node before them had failed", kept)
                    + ". To run them again too: "
                    + shlex.join(["glidemq", "flow", "rerun", flow.id, kept[0]]),
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
            if changed and (advice := _task_to_clear(status.labels)):
                errors.print(advice, markup=False, highlight=False, soft_wrap=True)
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json, changed=changed)


def _completed_after(failed: Sequence[str], nodes: Sequence[NodeStatus]) -> Sequence[str]:
    """The completed nodes right after a failed one: their rule or its ``on_failure`` allowed them to run."""
    causes = set(failed)
    return [
        node.name for node in nodes if node.state is JobState.COMPLETED and not causes.isdisjoint(node.after)
    ]


def _unchanged(flow_id: str, state: FlowState) -> str:
    if state is FlowState.COMPLETED:
        return f"Nothing was changed: the flow has completed. To run it again: glidemq flow restart {flow_id}"
    return "Nothing was changed: the flow is running."


def _task_to_clear(labels: Mapping[str, str]) -> str:
    """What to run again in an orchestrator that has the flow, by its labels; empty without one."""
    if labels.get("orchestrator") == "airflow":
        task = f"{labels.get('dag_id', '?')}/{labels.get('task_id', '?')} of run {labels.get('run_id', '?')}"
        return f"The Airflow task stays failed: now clear {task}. It waits for this run."
    if "dagster_run" in labels:
        step = f"step {labels.get('dagster_step', '?')} of run {labels['dagster_run']}"
        return f"The Dagster run stays failed: now re-execute {step} from failure; it waits for this run."
    return ""


@reports_errors
def restart(
    flow_id: FlowIdArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...",
            help="Run only from these nodes on; the others keep their results.",
            autocompletion=node_names,
        ),
    ] = None,
    url: Url = None,
    wait: WaitForEnd = True,
    watch: WatchLive = True,
    timeout: Timeout = None,
    idempotency_key: IdempotencyKey = "",
    generation: GenerationOption = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run a whole flow again, or from given nodes on, as its next generation.

    A running flow is cancelled first. If nodes are given, only these run, with their dependents and all nodes
    that did not complete.
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
    generation: GenerationOption = None,
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
