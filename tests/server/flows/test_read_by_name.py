"""Nodes and results are read by the names of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.errors import ConfigurationError, NodeNotFound
from tests.builders import flow, node
from tests.server.flows.watch.changes import LONG

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients, Record


def test_single_nodes_and_chosen_results_are_read_by_name(
    clients: Clients, run_worker: RunWorker, recorder: type[Record]
) -> None:
    found = clients.flows().submit(flow(node("a"), node("b", "a"), node("c", "a"), node("d", "c")))
    run_worker(["etl"], {"work": recorder("c")})
    found.wait(timeout=LONG)
    one = found.node("c")
    assert (one.name, one.state, one.after, one.queue) == ("c", "failed", ("a",), "etl")
    assert found.node("b") == found.nodes()[1]
    assert found.results(["b", "c", "a", "b"]) == {"b": "b!", "a": "a!"}
    assert found.results([]) == {}
    with pytest.raises(NodeNotFound, match=f"flow {found.id} has no node x"):
        found.node("x")
    with pytest.raises(NodeNotFound, match=f"flow {found.id} has no node x"):
        found.results(["a", "x"])
    with pytest.raises(ConfigurationError, match="the text 'ab'"):
        found.results("ab")
