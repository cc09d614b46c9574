"""What the calls for a next generation refuse before they change anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    FlowProducer,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowNotFound,
)
from tests.builders import diamond
from tests.server.policy_work import Work

if TYPE_CHECKING:
    from tests.server.conftest import Dump


pytestmark = pytest.mark.usefixtures("path")


def test_arguments_of_the_wrong_type_and_nothing_to_restart(
    broken: FlowProducer, work: Work, dump: Dump
) -> None:
    flow: Any = broken.get("f")
    work.worker.stop()
    before = dump()
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: flow.restart(nodes=[]), "nodes is empty"),
        (lambda: flow.restart(nodes=iter(())), "nodes is empty"),
        (lambda: flow.restart(nodes=[5]), "nodes must be a list of node names, got 5"),
        (lambda: flow.restart(generation=True), "generation must be int or None, got True"),
        (lambda: flow.restart(idempotency_key=None), "idempotency_key of type NoneType"),
        (lambda: flow.restart(idempotency_key=0), "idempotency_key of type int"),
        (lambda: flow.cancel(generation=False), "generation must be int or None, got False"),
        (lambda: flow.cancel(generation="0"), "generation must be int or None, got '0'"),
        (lambda: flow.retry_failed(generation=0.0), r"generation must be int or None, got 0\.0"),
        (lambda: flow.rerun("a", dependents="no"), "dependents must be bool, got 'no'"),
        (lambda: flow.rerun(5), "node must be str, got 5"),
        (lambda: flow.rerun(nodes=["a", None]), "nodes must be a list of node names, got None"),
        (lambda: flow.rerun("a", generation=True), "generation must be"),
        (lambda: flow.rerun(error=5), "error must be str, got 5"),
        (lambda: flow.cancel_node(pattern=b"a"), "pattern must be str"),
        (lambda: flow.complete_node(b"a"), "node must be str"),
        (lambda: flow.skip_node("a", state=None), "state must be str"),
    ]
    for call, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            call()
    assert dump() == before
    assert (flow.generation, flow.status().state) == (0, "failed")


def test_a_plan_for_a_flow_that_never_was(flows: FlowProducer) -> None:
    with pytest.raises(FlowNotFound):
        flows.plan(diamond(), flow_id="f")
