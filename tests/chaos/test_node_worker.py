"""What a Node worker notes of its own reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from tests.chaos.node_worker import REVOKED, Reporter, connected
from tests.node import Taken


def client_of(url: str) -> AbstractContextManager[Reporter]:
    """One that waits longer than those of chaos, whose servers fail on purpose."""
    return connected(url.replace("valkey", "redis"), "q", "node", seconds=30)


@pytest.mark.parametrize("is_retried", [False, True])
def test_a_job_that_was_met_revoked_is_failed_too_late_after_a_retry(url: str, *, is_retried: bool) -> None:
    with FlowProducer(url) as flows, client_of(url) as node:
        flow = flows.submit(FlowSpec("f", [FlowNode("a", queue="q", job="work")]), flow_id="f")
        place = node.place(1_000)
        assert place
        flow.cancel("late")
        assert node.activate(*place) == "REVOKED"
        if is_retried:
            flow.retry_failed()
        node.refuse(Taken(*place, {"opts": "{}", "processedOn": ""}))
        (found,) = flow.nodes()
    assert (node.is_late, found.reason) == (is_retried, REVOKED if is_retried else "cancelled: late")


def test_a_job_that_had_ended_is_known_by_the_reply_to_a_report(url: str) -> None:
    with FlowProducer(url) as flows, client_of(url) as node:
        flows.submit(
            FlowSpec("f", [FlowNode("a", queue="q", job="work"), FlowNode("b", queue="q", job="work")]),
            flow_id="f",
        )
        entries = [place for _ in "ab" if (place := node.place(1_000))]
        (first, second) = (node.activate(*place) for place in entries)
        assert isinstance(first, Taken)
        assert isinstance(second, Taken)
        node.finish(first, "1")
        node.client.xadd(f"{node.prefix}:stream", {"jobId": first.id, "name": "work"})  # as after a retry
        taken = node.fetched(node.finish(second, "1"))
        assert taken
        assert taken.id == first.id
        assert node.was == "ended"
