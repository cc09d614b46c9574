"""A server that keeps its data through restarts, and what is asked of it between them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import redis

from glidemq_orchestrate import EmbeddedServer, FlowNode, FlowSpec
from glidemq_orchestrate.attempts import exchange, workers
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.libraries import ensure_libraries, repeat_lost
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from glidemq_orchestrate.jobs.attempt import Attempt

T = TypeVar("T")

ETL = QueueKeys("glide", "etl")


class Keeper:
    """One server process after another on the same data, and a clock that only the test moves."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.now = directory, 1_000_000
        self.server = EmbeddedServer(data_dir=directory).start()
        self.port = int(self.server.url.rpartition(":")[2])
        self.tokens = 0
        self.connect()

    def connect(self) -> None:
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)
        self.driver = SyncDriver(ConnectionSettings.resolve(self.server.url), repeat_lost)
        self.driver.run(ensure_libraries())
        self.driver.run(workers.open_queues([ETL]))

    def disconnect(self) -> None:
        self.client.close()
        self.driver.close()

    def again(self, *, kill: bool = False) -> None:
        """The server ends, in order or by SIGKILL, and another process begins with what is on disk."""
        self.disconnect()
        pid = self.server.pid
        if kill and pid:
            os.kill(pid, signal.SIGKILL)
        self.server.stop()
        self.server = EmbeddedServer(data_dir=self.directory, port=self.port).start()
        self.connect()

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def run(self, op: Op[T]) -> T:
        return self.driver.run(op)

    def call(self, call: Call[T]) -> T:
        return self.run(ask(call))

    def submit(self, *nodes: FlowNode) -> None:
        self.run(submit_flow("glide", check_flow(FlowSpec("n", nodes)), "f", "attach", self))

    def begin(self, wanted: int = 100) -> list[Attempt]:
        self.tokens += 1
        request = exchange.Request([], wanted, f"t{self.tokens}")
        return list(self.call(exchange.finish_and_fetch(ETL, "w", request, self.now)).fetched)

    def hand_in(self, kind: Kind, text: str, attempts: list[Attempt]) -> list[str]:
        """Hand in one outcome for all of them; the verdicts."""
        outcomes = [Outcome(attempt, kind, text, "", 1, 0) for attempt in attempts]
        request = exchange.Request(outcomes, 0, "")
        return list(self.call(exchange.finish_and_fetch(ETL, "w", request, self.now)).verdicts)

    def record(self) -> dict[str, str]:
        return dict(self.client.hgetall("glide:{etl}:gmo:flow:f"))


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.disconnect()
    made.server.stop()
