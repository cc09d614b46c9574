"""A real Valkey, a worker in a thread, and stand-ins for what Airflow hands to an operator."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import SyncToAsync

# Airflow writes its configuration to AIRFLOW_HOME when it is imported.
_HOME = tempfile.TemporaryDirectory(prefix="glidemq-airflow-", ignore_cleanup_errors=True)
os.environ.setdefault("AIRFLOW_HOME", _HOME.name)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about what Airflow's own modules import
    import airflow.models
    import airflow.sdk
    import airflow.triggers.base
    from airflow.sdk.bases.operator import ExecutorSafeguard

    airflow.models.import_all_models()  # type: ignore[no-untyped-call]  # 3.1 does it for the first connection

from glidemq_orchestrate import (  # noqa: E402
    AsyncFlowProducer,
    Context,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    Queue,
    Skip,
    Unrecoverable,
    Worker,
)
from tests.providers.airflow.builders import QUEUE, FakeRun, FakeTask, Valkey  # noqa: E402

HAS_STREAMS = hasattr(airflow.triggers.base.BaseEventTrigger, "shared_stream_key")  # Airflow 3.3 and later
collect_ignore = [] if HAS_STREAMS else ["test_message_stream.py"]


@pytest.fixture(scope="session", autouse=True)
def _thread_of_asgiref() -> None:
    """Airflow looks connections up in a thread that asgiref keeps as long as the process."""
    SyncToAsync.single_thread_executor.submit(int).result()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def valkey(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Valkey:
    """Also the connection ``glidemq_default``."""
    found = Valkey(server.url, f"t{uuid.uuid4().hex[:8]}")
    port = int(found.url.rsplit(":", 1)[1])
    connection = {
        "conn_type": "glidemq",
        "host": "127.0.0.1",
        "port": port,
        "extra": {"prefix": found.prefix},
    }
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(connection))
    return found


@pytest.fixture
async def producer(valkey: Valkey) -> AsyncIterator[AsyncFlowProducer]:
    async with AsyncFlowProducer(valkey.url, prefix=valkey.prefix) as made:
        yield made


@pytest.fixture
def queue(valkey: Valkey) -> Iterator[Queue]:
    with Queue(QUEUE, valkey.url, prefix=valkey.prefix) as found:
        yield found


@pytest.fixture
def worker(valkey: Valkey) -> Iterator[Worker]:
    """Knows ``echo``, ``skip``, ``grow``, ``count``, and ``fail`` and ``wait`` until ``valkey.gate`` is set.

    ``count`` notes the node in ``valkey.ran`` and returns how many there are; no two results are equal.
    ``grow`` adds the node ``more``; ``verbose`` logs, and fails.
    """
    made = Worker(valkey.url, queues=[QUEUE], concurrency=4, prefix=valkey.prefix)

    @made.handler("echo")
    def echo(ctx: Context) -> Any:
        return ctx.data

    @made.handler("count")
    def count(ctx: Context) -> int:
        valkey.ran.append(str(ctx.node))
        return len(valkey.ran)

    @made.handler("fail")
    def fail(ctx: Context) -> Any:
        if not valkey.gate.is_set():
            raise Unrecoverable("no such month")
        return "repaired"

    @made.handler("wait")
    def wait(ctx: Context) -> Any:
        while not ctx.cancelled.is_set():
            if valkey.gate.wait(0.02):
                return "done"
        return None

    _register_more(made)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    assert made.ready.wait(20)
    yield made
    made.stop()
    valkey.gate.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def flows(valkey: Valkey, worker: Worker) -> Iterator[FlowProducer]:
    """A client beside the worker; what still waits at the end of a test goes on."""
    with valkey.producer() as made:
        yield made
    valkey.gate.set()


def _register_more(made: Worker) -> None:
    @made.handler("verbose")
    def verbose(ctx: Context) -> None:
        for number in range(30):
            ctx.log(f"line {number} " + "x" * 2000)
        raise Unrecoverable("as announced")

    @made.handler("grow")
    def grow(ctx: Context) -> None:
        assert ctx.flow is not None
        ctx.flow.add_nodes([FlowNode("more", queue=QUEUE, job="echo", data=9)])

    @made.handler("skip")
    def skip(ctx: Context) -> None:
        raise Skip(f"nothing to do for {ctx.data}")


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes contexts; operators may be called outside of tasks. ``run``: fields of the DAG run."""
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)

    def make(*, run: FakeRun | None = None, **fields: Any) -> Any:
        return {"ti": FakeTask(run_id=fields.pop("run_id", "r1"), **fields), "dag_run": run or FakeRun()}

    return make
