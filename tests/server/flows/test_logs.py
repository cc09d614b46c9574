"""The lines that nodes have logged, by node name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.errors import ConfigurationError, NodeNotFound, Superseded
from tests.server.conftest import REACHES

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients

LONG = timedelta(seconds=30)
SPEC = FlowSpec(
    "logs",
    [
        FlowNode("few", queue="etl", job="log", data=3),
        FlowNode("many", queue="other", job="log", data=50),
        FlowNode("no", queue="etl", job="log", data=0, after=["few"]),
    ],
)


def log(ctx: Any) -> None:
    for number in range(ctx.data):
        ctx.log(f"{ctx.node or ctx.name} {number}")


def lines(name: str, *numbers: int) -> list[str]:
    return [f"{name} {number}" for number in numbers]


@pytest.mark.parametrize("path", ["staged", "portable"])
def test_lines_are_read_by_node_name(
    clients: Clients, run_worker: RunWorker, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES[path])
    run_worker(["etl", "other"], {"log": log})
    flow = clients.flows().submit(SPEC, flow_id="f")
    flow.wait(timeout=LONG)
    found = flow.logs({"few": 1, "many": 10, "no": 0}, limit=5)
    assert {name: (logs.lines, logs.total) for name, logs in found.items()} == {
        "few": (lines("few", 1, 2), 3),
        "many": (lines("many", *range(10, 15)), 50),
        "no": ([], 0),
    }
    last = flow.logs({"few": -20, "many": -2})
    assert last["few"].lines == lines("few", 0, 1, 2)
    assert last["many"].lines == lines("many", 48, 49)
    assert flow.logs({"many": -10}, limit=2)["many"].lines == lines("many", 40, 41)
    assert flow.logs({"few": 3})["few"].lines == []
    assert flow.logs({}) == {}


def test_what_is_not_there_is_refused(clients: Clients) -> None:
    flow = clients.flows().submit(SPEC, flow_id="f")
    with pytest.raises(NodeNotFound, match="has no node never"):
        flow.logs({"few": 0, "never": 0})
    with pytest.raises(ConfigurationError, match="limit"):
        flow.logs({"few": 0}, limit=0)
    other = clients.flows().get("f")
    other.restart()
    with pytest.raises(Superseded):
        flow.logs({"few": 0})


def test_more_nodes_than_a_trip_holds(clients: Clients) -> None:
    nodes = [FlowNode(f"n{number}", queue="etl", job="log", data=1) for number in range(450)]
    flow = clients.flows().submit(FlowSpec("wide", nodes), flow_id="f")
    assert len(flow.logs({node.name: 0 for node in nodes})) == 450


def test_a_long_log_keeps_its_last_lines_and_their_numbers(
    clients: Clients, run_worker: RunWorker, redis_client: Any
) -> None:
    run_worker(["etl", "other"], {"log": log})
    spec = FlowSpec(
        "long",
        [
            FlowNode("long", queue="etl", job="log", data=21_500),
            FlowNode("short", queue="other", job="log", data=3),
        ],
    )
    flow = clients.flows().submit(spec, flow_id="f")
    flow.wait(timeout=LONG)
    assert redis_client.llen("glide:{etl}:log:f~long") == 10_500
    queue = clients.queue("etl")

    def read(offset: int, limit: int) -> tuple[list[str], int]:
        both = [queue.logs("f~long", offset=offset, limit=limit)]
        both.append(flow.logs({"short": 1, "long": offset}, limit=limit)["long"])
        assert both[0] == both[1]
        assert both[0].total == 21_500
        return both[0].lines, both[0].first

    assert read(0, 2) == (lines("long", 11_000, 11_001), 11_000)
    assert read(10_999, 2) == (lines("long", 11_000, 11_001), 11_000)
    assert read(12_000, 2) == (lines("long", 12_000, 12_001), 12_000)
    assert read(-2, 9) == (lines("long", 21_498, 21_499), 21_498)
    assert read(21_500, 5) == ([], 21_500)
