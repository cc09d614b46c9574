"""The dashboard for Grafana and the page about metrics show what a console and a worker really export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from glidemq_orchestrate import ArrayNode, Context, FlowProducer, FlowSpec, JobState, NewJob, Queue

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

DOCS: Final = Path(__file__).parents[2] / "docs"
OF_PROMETHEUS: Final = {"instance", "job"}
SUFFIXES: Final = ("_bucket", "_count", "_sum")
METRIC: Final = re.compile(r"\b(glidemq_\w+)(\{[^}]*\})?")
LABEL: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
ROW: Final = re.compile(r"^\| `(glidemq_\w+)` \| ([^|]*)\|", re.MULTILINE)

Exported = dict[str, set[str]]
"""The labels of each sample, by its name."""


def load(ctx: Context) -> int:
    if ctx.data == "bad" or (ctx.data == "later" and ctx.attempt == 1):
        raise ValueError(ctx.data)
    return 1


def samples(text: str) -> Exported:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  optional

    found: Exported = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture
def exported(
    url: str, queue: Queue, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> Exported:
    from starlette.testclient import TestClient  # noqa: PLC0415  optional

    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    queue.set_dead_letter_queue("letters")
    queue.add_many([NewJob("load", "ok"), NewJob("load", "bad"), NewJob("load", "later", attempts=2)])
    flow = flows.submit(FlowSpec("n", [ArrayNode("each", job="load", over=range(3), queue="etl")]))
    running = run_worker(["etl"], {"load": load}, metrics_port=0)
    flow.wait(timeout=30)
    eventually(lambda: queue.counts()[JobState.FAILED] == 1 and queue.counts()[JobState.COMPLETED] == 3)
    assert running.worker.metrics_url is not None
    found = samples(httpx.get(running.worker.metrics_url).text)
    running.stop()  # reports its statistics
    with TestClient(create_app(url), base_url="http://localhost") as console:
        return found | samples(console.get("/metrics").text)


def expressions(part: Any) -> Iterator[str]:
    """Each PromQL expression of a dashboard, and the queries of its variables."""
    if isinstance(part, dict):
        yield from (text for name, text in part.items() if name in ("expr", "definition"))
        yield from (text for value in part.values() for text in expressions(value))
    elif isinstance(part, list):
        yield from (text for value in part for text in expressions(value))


def check(expression: str, exported: Exported) -> None:
    """Check that its metrics are exported, with the labels that it uses."""
    known = set(OF_PROMETHEUS)
    for name, matchers in METRIC.findall(expression):
        assert name in exported, expression
        known |= exported[name]
        assert set(LABEL.findall(matchers)) <= exported[name], expression
    for labels in GROUPING.findall(expression):
        assert {one.strip() for one in labels.split(",")} <= known, expression


def test_the_dashboard_asks_for_what_is_exported(exported: Exported) -> None:
    dashboard = json.loads((DOCS / "grafana/glidemq.json").read_text(encoding="utf-8"))
    assert dashboard["schemaVersion"] >= 38, "Grafana 10"
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    for panel in panels:
        uids = {panel["datasource"]["uid"], *(one["datasource"]["uid"] for one in panel["targets"])}
        assert uids == {"${datasource}"}, panel["title"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    asked = set(expressions(dashboard))
    assert len(asked) > 30
    for text in asked:
        check(text, exported)
    legends = {
        (label, one["expr"])
        for panel in panels
        for one in panel["targets"]
        for label in re.findall(r"\{\{(\w+)\}\}", one["legendFormat"])
    }
    assert all(label in expression or label == "server" for label, expression in legends)


def test_every_metric_is_documented_with_its_labels(exported: Exported) -> None:
    page = (DOCS / "how-to/monitoring.md").read_text(encoding="utf-8")
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in ROW.findall(page)}
    families: Exported = {}
    for name, labels in exported.items():
        suffix = next((one for one in SUFFIXES if name.endswith(one)), "")
        families.setdefault(name.removesuffix(suffix), set()).update(labels - {"le"})
    assert families == documented
    alerts = [
        text for text in re.findall(r"^\|[^|`]+\| `([^`]+)` \|$", page, re.MULTILINE) if "glidemq_" in text
    ]
    assert len(alerts) == 8
    for text in alerts:
        check(text, exported)
