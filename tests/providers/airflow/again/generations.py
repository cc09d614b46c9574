"""The generations of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.providers.airflow.builders import FLOW_ID

if TYPE_CHECKING:
    from glidemq_orchestrate import FlowProducer


def generations(flows: FlowProducer, flow_id: str = FLOW_ID) -> list[str]:
    """Their states, oldest first."""
    return [status.state.value for status in flows.get(flow_id).history()]
