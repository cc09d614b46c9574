"""Jobs whose workers know no Pipes: their JSON result is what they report."""

import threading
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient

from tests.node import Node
from tests.providers.dagster.builders import failure_of, messages
from tests.providers.dagster.pipes_steps import clean, materialized, run

RunWorker = Callable[..., Any]
ODD = {"x": {"raw_value": 1, "type": "colour"}}


@pytest.fixture
def pipes(url: str) -> PipesGlideMQClient:
    return PipesGlideMQClient(url=url, poll_interval=0.1)


def test_the_plain_values_of_a_json_result_are_metadata(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    rows = {
        "rows": 3,
        "dagster/row_count": 3,
        "share": 0.5,
        "path": "/data",
        "fine": True,
        "more": [1],
        "no": None,
    }
    run_worker(["etl"], {"clean": lambda ctx: rows})
    result = run(pipes, instance, clean)
    found = materialized(result)["cleaned"]
    assert {name: found.get(name) for name in rows} == rows | {"more": None}
    assert not [line for line in messages(instance, result.run_id) if "did not receive" in line]


def test_a_node_worker_that_knows_no_pipes(url: str, instance: dg.DagsterInstance, redis_client: Any) -> None:
    pipes = PipesGlideMQClient(url=url, require_workers=False, poll_interval=0.1)
    node, stop = Node(redis_client, "etl"), threading.Event()

    def serve() -> None:
        while not stop.wait(0.05):
            if (taken := node.take()) is not None:
                node.complete(taken, '{"rows": 11}')
                return

    worker = threading.Thread(target=serve)
    worker.start()
    try:
        result = run(pipes, instance, clean)
    finally:
        stop.set()
        worker.join(20)
    assert materialized(result)["cleaned"]["rows"] == 11


def test_a_result_may_hold_messages_of_pipes(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    reports = [
        {"method": "log", "params": {"message": "from far away"}},
        {"method": "report_asset_materialization", "params": {"metadata": {"rows": 3, "all": [1, 2]}}},
        {
            "method": "report_asset_check",
            "params": {"check_name": "some", "passed": False, "severity": "WARN"},
        },
    ]
    run_worker(["etl"], {"clean": lambda ctx: {"dagster_pipes": reports}})
    checks = [dg.AssetCheckSpec("some", asset="cleaned")]
    result = run(pipes, instance, clean, check_specs=checks)
    assert result.success
    assert (materialized(result)["cleaned"]["rows"], materialized(result)["cleaned"]["all"]) == (3, [1, 2])
    (check,) = result.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "from far away" in messages(instance, result.run_id)


@pytest.mark.parametrize(
    ("reports", "complaint"),
    [
        ("x", "must be a list"),
        ([7], r"dagster_pipes\[0\] must be"),
        ([{"method": "materialize", "params": {}}], "with a method of log"),
        ([{"method": "log", "params": {}}], "log needs message"),
        ([{"method": "log", "params": {"message": "x", "colour": 1}}], "log takes no colour"),
        ([{"method": "report_asset_materialization", "params": {"asset_key": 7}}], "must be a text"),
        ([{"method": "report_asset_check", "params": {"check_name": "x", "passed": 1}}], "does not have"),
        ([{"method": "report_asset_materialization", "params": {"metadata": ODD}}], "is not valid"),
    ],
)
def test_a_result_with_other_messages_fails_the_step(
    pipes: PipesGlideMQClient,
    instance: dg.DagsterInstance,
    run_worker: RunWorker,
    reports: Any,
    complaint: str,
) -> None:
    run_worker(["etl"], {"clean": lambda ctx: {"dagster_pipes": reports}})
    failure = failure_of(run(pipes, instance, clean))
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(failure.description)
