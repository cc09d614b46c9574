"""A flow that has failed, of which the next generation begins."""

from __future__ import annotations

import pytest

from glidemq_orchestrate import FlowProducer
from tests.builders import diamond
from tests.server.policy_work import LONG, Work


def end_with_a_failure(flows: FlowProducer, work: Work, flow_id: str = "f") -> None:
    """Run the diamond, in which b fails; it would not fail again."""
    work.ends["b"] = "failed"
    flows.submit(diamond(), flow_id=flow_id).wait(timeout=LONG)
    work.ends.clear()
    work.ran.clear()


@pytest.fixture
def broken(flows: FlowProducer, work: Work) -> FlowProducer:
    """The diamond has failed under the id f."""
    end_with_a_failure(flows, work)
    return flows
