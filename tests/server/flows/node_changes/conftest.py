"""A flow that has ended, of which single nodes run again."""

from __future__ import annotations

import pytest

from glidemq_orchestrate import Flow, FlowProducer
from tests.builders import diamond
from tests.conftest import Eventually
from tests.server.conftest import Dump
from tests.server.policy_work import LONG, Work


def counts(flow: Flow) -> tuple[str, int, int, int]:
    status = flow.status()
    return str(status.state), status.completed, status.failed, status.skipped


@pytest.fixture
def done(flows: FlowProducer, work: Work, dump: Dump, eventually: Eventually) -> Flow:
    """The diamond, completed; its end is noted everywhere."""
    flow = flows.submit(diamond(), flow_id="f")
    flow.wait(timeout=LONG)
    eventually(lambda: dump() == dump())
    work.ran.clear()
    return flow


@pytest.fixture
def broken(flows: FlowProducer, work: Work) -> Flow:
    """The diamond, in which b has failed; it would not fail again."""
    work.ends["b"] = "failed"
    flow = flows.submit(diamond(), flow_id="f")
    flow.wait(timeout=LONG)
    work.ends.clear()
    work.ran.clear()
    return flow
