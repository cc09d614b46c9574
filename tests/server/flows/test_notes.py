"""What a flow keeps for whoever submitted it: a note, and how often it has begun again; both paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound
from tests.builders import node
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from tests.conftest import RunWorker

pytestmark = pytest.mark.usefixtures("path")

FLOW = FlowSpec("n", [node("a"), node("b", "a")])


def test_a_note_stays_with_its_generation_and_runs_count_repeats(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    work = Work()
    work.ends["b"] = "failed"
    run_worker(["etl"], {"work": work})
    flow = flows.submit(FLOW, flow_id="f", idempotency_key="first")
    flow.wait(timeout=LONG)
    assert (flow.status().times_reopened, flow.status().note) == (0, "")
    flow.note("seen by one")
    flow.note("seen by two")
    flow.retry_failed()
    flow.wait(timeout=LONG)
    assert (flow.status().times_reopened, flow.status().note) == (1, "seen by two")
    work.ends["b"] = "done"
    flow.rerun("a")
    assert flow.wait(timeout=LONG).status.state == "completed"
    assert flow.status().times_reopened == 2
    flow.restart()
    flow.wait(timeout=LONG)
    assert (flow.status().times_reopened, flow.status().note) == (0, ""), "another generation"
    old = flow.history()[0]
    assert (old.times_reopened, old.note) == (2, "seen by two")


def test_a_note_is_short_and_leaves_nothing_where_the_flow_is_gone(
    flows: FlowProducer, redis_client: object
) -> None:
    flow = flows.submit(FLOW, flow_id="f")
    with pytest.raises(ConfigurationError, match="note"):
        flow.note("two\nlines")
    redis_client.delete("glide:{etl}:gmo:flow:f")  # type: ignore[attr-defined]
    with pytest.raises(FlowNotFound):
        flow.note("late")
    assert not redis_client.exists("glide:{etl}:gmo:flow:f")  # type: ignore[attr-defined]
