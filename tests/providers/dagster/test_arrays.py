"""An array behind an op, in place of a dynamic output: the README has this code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import dagster as dg
from dagster_glidemq import GlideMQResource

from glidemq_orchestrate import ArrayNode, Context, FlowNode, FlowSpec
from tests.providers.dagster.builders import run_op

RunWorker = Callable[..., Any]


def totals(context: dg.OpExecutionContext, glidemq: GlideMQResource) -> int:
    """Sum up what an array has made of the numbers."""
    nodes = [ArrayNode("clean", over=range(200)), FlowNode("report", after=["clean"])]
    outcome = glidemq.run_flow(context, FlowSpec("items", nodes, queue="etl"))
    with glidemq.get_client() as client:
        elements = client.get(outcome.status.id).array("clean")
        return sum(result for _, result in elements.iter_results())


def test_an_op_maps_over_items_and_collects_their_results(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    ran, broken = Counter[int](), {7}

    def clean(ctx: Context) -> int:
        ran[ctx.data] += 1
        if ctx.data in broken:
            raise ValueError("no such item")
        return 2 * int(ctx.data)

    run_worker(["etl"], {"clean": clean, "report": lambda ctx: ctx.inputs["clean"]["completed"]})
    glidemq = GlideMQResource(url=url)
    failed = run_op(glidemq, instance, totals)
    assert not failed.success
    told = [entry.user_message for entry in instance.all_logs(failed.run_id)]
    assert any("1 of 200 elements failed; element 7: ValueError: no such item" in text for text in told)
    broken.clear()
    of_failure = {"root_run_id": failed.run_id, "parent_run_id": failed.run_id, "is_resume_retry": "true"}
    tags = {f"dagster/{name}": value for name, value in of_failure.items()}
    again = run_op(glidemq, instance, totals, tags=tags)
    assert again.output_for_node("step") == sum(range(0, 400, 2))
    assert ran == Counter(range(200)) + Counter({7: 1}), "only the failed element ran again"
