"""Spans: what is added and what runs are linked."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, NewJob, Queue

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_a_run_is_linked_to_where_its_job_was_added(
    queue: Queue, spans: InMemorySpanExporter, run_worker: RunWorker, eventually: Eventually
) -> None:
    tracer = trace.get_tracer("test")
    seen: dict[str, int] = {}

    def work(ctx: Any) -> None:
        seen[ctx.job_id] = trace.get_current_span().get_span_context().span_id
        if ctx.data == "broken":
            raise ValueError("no")

    with tracer.start_as_current_span("request"):
        fine = queue.add("work", "fine")
        queue.add_many([NewJob("work", "broken")])
    run_worker(["etl"], {"work": work})
    eventually(lambda: len(named(spans, "process etl")) == 2)
    (request,) = named(spans, "request")
    sends = named(spans, "send etl")
    runs = named(spans, "process etl")
    assert {span.parent.span_id for span in sends} == {request.context.span_id}
    linked = {span.links[0].context.span_id: span for span in runs}
    assert set(linked) == {span.context.span_id for span in sends}
    assert {span.links[0].context.trace_id for span in runs} == {request.context.trace_id}
    first = next(span for span in runs if span.attributes["messaging.message.id"] == fine)
    assert first.attributes["glidemq.attempt"] == 1
    assert first.kind is trace.SpanKind.CONSUMER
    assert seen[fine] == first.context.span_id, "the handler runs inside the span, also in a thread"
    assert sorted(span.status.is_ok for span in runs) == [False, True]


def test_without_a_provider_a_job_carries_nothing(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("work")
    assert redis_client.hget(f"glide:{{etl}}:job:{job_id}", "opts") == "{}"


def test_the_nodes_of_a_flow_are_linked_to_its_submission(
    flows: FlowProducer, spans: InMemorySpanExporter, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"work": lambda _: None})
    options = JobOptions(attempts=2)
    nodes = [
        FlowNode("a", queue="etl", job="work"),
        FlowNode("b", queue="etl", job="work", after=["a"], options=options),
    ]
    flow = flows.submit(FlowSpec("nightly", nodes), flow_id="f")
    flow.wait(timeout=timedelta(seconds=30))
    (send,) = named(spans, "send etl")
    assert send.attributes["messaging.batch.message_count"] == 2
    runs = named(spans, "process etl")
    assert {span.links[0].context.span_id for span in runs} == {send.context.span_id}
    assert {span.attributes["glidemq.node"] for span in runs} == {"a", "b"}
    again = flows.submit(FlowSpec("nightly", nodes), flow_id="f")
    assert again.status().completed == 2, "it is the same flow"


def test_a_run_in_a_shard_is_one_of_its_queue(
    url: str, spans: InMemorySpanExporter, run_worker: RunWorker, eventually: Eventually
) -> None:
    with Queue("wide", url, shards=2) as queue:
        queue.add_many([NewJob("work") for _ in range(2)])
        run_worker(["wide"], {"work": lambda _: None})
        eventually(lambda: len(named(spans, "process wide")) == 2)
    assert len(named(spans, "send wide")) == 1
    runs = [span.attributes for span in named(spans, "process wide")]
    assert {run["messaging.destination.name"] for run in runs} == {"wide"}
    assert {run["messaging.destination.partition.id"] for run in runs} == {"0", "1"}
