"""What a handler awaits: what ends in ``_async``, and nothing else."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import Context, FlowNode
from glidemq_orchestrate.worker.contexts import RunningFlow
from glidemq_orchestrate.worker.handlers.context import Cancelled, FlowOfNode, Reporter

REPORTS = {"progress", "log", "output", "report_usage", "write_message"}
KEEPS = {"append"}


def methods(kind: type) -> dict[str, Any]:
    return {
        name: one for name, one in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")
    }


def test_what_is_awaited_ends_in_async_and_nothing_else_does(subtests: pytest.Subtests) -> None:
    for kind in (Context, FlowOfNode, RunningFlow, Reporter):
        with subtests.test(kind=kind):
            found = methods(kind)
            assert {name for name, one in found.items() if inspect.iscoroutinefunction(one)} == {
                name for name in found if name.endswith("_async")
            }


def test_what_needs_a_reply_has_both_forms_with_the_same_parameters(subtests: pytest.Subtests) -> None:
    for kind in (Context, FlowOfNode):
        with subtests.test(kind=kind):
            found = methods(kind)
            plain = {name for name in found if not name.endswith("_async")} - REPORTS - KEEPS - {"fail"}
            assert plain == {name.removesuffix("_async") for name in found if name.endswith("_async")}
            for name in plain:
                assert inspect.signature(found[name]) == inspect.signature(found[f"{name}_async"])


async def test_a_job_that_cannot_add_nodes_says_why() -> None:
    ctx = Context("etl", "1", "clean", 1, None, {}, None, None)
    assert not ctx.flow
    with pytest.raises(RuntimeError, match="not in a flow"):
        ctx.flow.map_over(FlowNode("item"), [1])
    with pytest.raises(RuntimeError, match="not in a flow"):
        await ctx.flow.add_nodes_async([FlowNode("item")])


def test_the_rule_is_in_the_docstring() -> None:
    text = " ".join((Context.__doc__ or "").split())
    assert "An async handler awaits the methods that end in ``_async``, and no others" in text
    for name in (*REPORTS, "flow.append", "check_owner_async", "flow.add_nodes_async", "flow.map_over_async"):
        assert f"``{name}``" in text


async def test_waiting_for_a_cancel_would_block_the_loop() -> None:
    with pytest.raises(RuntimeError, match="an async handler is cancelled instead"):
        Cancelled().wait(timedelta(seconds=1))


def test_a_plain_handler_may_wait_for_it() -> None:
    cancelled = Cancelled()
    assert not cancelled.wait(0.01)
    cancelled.set()
    assert cancelled.wait()
