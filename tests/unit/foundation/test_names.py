"""Every name has a bound, wherever it enters; the error is short and shows which name and what it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_orchestrate import (
    BroadcastWorker,
    Deduplication,
    EventReader,
    FlowNode,
    FlowSpec,
    JobOptions,
    JobTemplate,
    Ordering,
    Queue,
    Schedule,
    Worker,
)
from glidemq_orchestrate.clients.operations.flow import FlowOperations
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.foundation import texts
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs import adding as queue_ops
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.changes import signal
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.queues import limits as admin
from glidemq_orchestrate.schedules import ops as schedulers
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys, check_flow_id, check_job_id
from glidemq_orchestrate.worker.services.supervisor import Supervisor

URL = "valkey://127.0.0.1:1"
KEYS = QueueKeys("glide", "q")
T = 1_700_000_000_000

NOT_TEXT: list[str] = ["queue name", "job id", "flow id", "flow name", "node name", "job name", "label"]


def flow(name: str = "f", node: str = "a", queue: str = "q", job: str = "j", **labels: str) -> Any:
    return check_flow(FlowSpec(name, [FlowNode(node, queue=queue, job=job)], labels=labels))


def add(name: str) -> Any:
    return next(queue_ops.add_job(KEYS, NewJob(name, None, options=JobOptions()), T))


def add_many(name: str) -> Any:
    return next(queue_ops.add_many(KEYS, [NewJob(name, None, options=JobOptions())], T))


def schedule(name: str) -> Any:
    return next(schedulers.upsert(KEYS, name, Schedule(every=timedelta(hours=1)), JobTemplate(), T))


PLACES: dict[str, tuple[Callable[[str], Any], int]] = {
    "queue name": (lambda name: Queue(name, URL), 256),
    "queue name of a worker": (lambda name: Worker(URL, queues=[name]), 256),
    "queue name of a supervisor": (lambda name: Supervisor(URL, queues=[name]), 256),
    "queue name of a reader": (lambda name: EventReader(name, URL), 256),
    "queue name of a node": (lambda name: flow(queue=name), 256),
    "job id": (check_job_id, 256),
    "job id of options": (lambda name: JobOptions(job_id=name), 256),
    "flow id": (check_flow_id, 256),
    "flow name": (lambda name: flow(name=name), 1024),
    "node name": (lambda name: flow(node=name), 256),
    "job name of a node": (lambda name: flow(job=name), 1024),
    "label": (lambda name: flow(key=name), 256),
    "label, its key": (lambda name: flow(**{name: "value"}), 256),
    "job name": (add, 1024),
    "job name of many": (add_many, 1024),
    "job name of a template": (JobTemplate, 1024),
    "schedule name": (schedule, 1024),
    "subscription name": (lambda name: BroadcastWorker("q", print, URL, subscription=name), 256),
    "subject pattern": (
        lambda name: BroadcastWorker("q", print, URL, subscription="s", subjects=[name]),
        1024,
    ),
    "prefix": (lambda name: ConnectionSettings(URL, prefix=name), 256),
    "ordering.key": (Ordering, 256),
    "deduplication.id": (Deduplication, 256),
    "signal": (lambda name: next(signal(KEYS, "1", name, None, T)), 256),
    "key": (
        lambda name: next(admin.rate_limit_group(KEYS, name, timedelta(1), T, extend=False)),
        256,
    ),
    "model": (lambda name: Usage(model=name), 256),
}


def test_a_name_is_bounded_wherever_it_enters(subtests: pytest.Subtests) -> None:
    for place, (use, most) in PLACES.items():
        with subtests.test(place=place):
            use("x" * most)
            kind = place.split(" of ", maxsplit=1)[0].split(",", maxsplit=1)[0]
            for name in ("", "x" * (most + 1), "x" * 20_000_000, "half \ud800", "ä" * most + "\udfff"):
                with pytest.raises((ConfigurationError, InvalidJob, InvalidFlow)) as refused:
                    use(name)
                message = str(refused.value)
                assert kind in message
                assert "1 to" in message
                assert len(message) < 300
                message.encode()  # a terminal can show it


def test_a_name_that_is_not_text_is_refused(subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [None, 3, b"x", ["x"]]
    for name in wrong:
        for place in NOT_TEXT:
            with subtests.test(name=name, place=place), pytest.raises(GlideMQError, match=place):
                PLACES[place][0](name)


def test_names_of_orchestrators_are_accepted() -> None:
    run_id = "manual__2026-01-01T00:00:00+00:00"
    assert check_flow_id(f"dag.task.{run_id}.{'x' * 150}")
    flow(name="x" * 500, node="größe [1/2]", job="my.module:function", run=run_id, dag="a" * 250)


def test_a_long_name_is_cut_in_errors() -> None:
    assert texts.shown("x" * 100) == f"'{'x' * 60}'... (100 characters)"
    assert texts.shown("a\ud800") == r"'a\ud800'"
    assert texts.shown(5) == "of type int"


@pytest.mark.parametrize("reason", ["x" * 20_000_000, "\ud800" * 5000])
def test_a_reason_of_a_cancel_is_cut(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def cancel(_ref: object, text: str, _clock: object) -> Iterator[None]:
        sent.append(text)
        yield from ()

    flow = FlowOperations(FlowRef(QueueKeys("glide", "etl"), "f"), SystemClock())
    monkeypatch.setattr(flow, "_backend", SimpleNamespace(cancel=cancel))
    assert list(flow.cancel(reason)) == []
    assert len(sent[0]) == texts.MAX_REASON
    sent[0].encode()
