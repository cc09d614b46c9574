"""Clients, a look into the whole database, and operations driven by hand."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import pytest

from glidemq_orchestrate import (
    AsyncClient,
    AsyncEventReader,
    AsyncFlowProducer,
    AsyncQueue,
    Client,
    EventReader,
    FlowProducer,
    Queue,
)
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.libraries import ensure_libraries
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Batch, Op, Request
from tests.conftest import RunWorker
from tests.profile import IS_CLUSTER
from tests.server.policy_work import Work

T = TypeVar("T")

LONG = timedelta(seconds=30)
REACHES = {"staged": Reach(is_cluster=IS_CLUSTER), "portable": Reach(has_functions=False)}


STAGED = pytest.mark.parametrize("path", ["staged"], indirect=True)
"""For tests that use ``path``: only what the portable path refuses."""


@pytest.fixture(params=list(REACHES))
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of every flow that a producer submits."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES[request.param])
    return str(request.param)


class Stopped(Exception):
    """The operation was stopped on purpose."""


def _sent(request: Request) -> Op[Any]:
    return (yield request)


class Hand:
    """Drives operations against the server, call by call."""

    def __init__(self, url: str) -> None:
        self.driver = SyncDriver(ConnectionSettings.resolve(url))
        self.driver.run(ensure_libraries())

    def run(self, op: Op[T]) -> T:
        return self.driver.run(op)

    def answer(self, request: Request) -> Any:
        """What the server replies to a request; a refusal is returned."""
        try:
            return self.driver.run(_sent(request))
        except GlideMQError as exc:
            return exc

    def steps(self, op: Op[Any]) -> Iterator[Request]:
        """Every request of the operation, after it was answered."""
        try:
            request = next(op)
            while True:
                reply = self.answer(request)
                yield request
                request = op.throw(reply) if isinstance(reply, GlideMQError) else op.send(reply)
        except StopIteration:
            return

    def answers(self, request: Request) -> Any:
        """What the server answers to one request of an operation."""
        if isinstance(request, Batch):
            return [self.answer(part) for part in request.calls]
        return self.answer(request)

    def run_until(self, op: Op[Any], calls: int) -> int:
        """Send only so many single calls, as if the process then died; returns how many there were in all."""
        sent = 0
        try:
            request = next(op)
            while True:
                parts = request.calls if isinstance(request, Batch) else (request,)
                answers = []
                for part in parts:
                    if sent == calls:
                        op.close()
                        return sent
                    answers.append(self.answer(part))
                    sent += 1
                if isinstance(request, Batch):
                    request = op.send(answers)
                elif isinstance(answers[0], GlideMQError):
                    request = op.throw(answers[0])
                else:
                    request = op.send(answers[0])
        except StopIteration:
            return sent


class Dump(Protocol):
    """The whole database: every key with its value, in a form that can be compared."""

    def __call__(self, *, events: bool = True) -> dict[str, Any]: ...


class Clients:
    """The façades of one kind, sync or async, made to look alike."""

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind
        self.runner = asyncio.Runner() if kind == "async" else None
        self.opened: list[Any] = []

    def do(self, value: Any) -> Any:
        """The value, or what it becomes."""
        if self.runner is None:
            return value

        async def wait() -> Any:
            return await value

        return self.runner.run(wait())

    def queue(self, name: str = "etl", **kw: Any) -> Any:
        return self.keep((Queue if self.runner is None else AsyncQueue)(name, kw.pop("url", self.url), **kw))

    def client(self, **kw: Any) -> Any:
        return self.keep((Client if self.runner is None else AsyncClient)(self.url, **kw))

    def flows(self, **kw: Any) -> Any:
        kind = FlowProducer if self.runner is None else AsyncFlowProducer
        return self.keep(kind(kw.pop("url", self.url), **kw))

    def events(self, queue: str = "etl", **kw: Any) -> Any:
        return self.keep((EventReader if self.runner is None else AsyncEventReader)(queue, self.url, **kw))

    def keep(self, made: T) -> T:
        self.opened.append(made)
        return made

    def close(self) -> None:
        for client in self.opened:
            self.do(client.close())
        if self.runner is not None:
            self.runner.close()


@pytest.fixture
def clients(url: str) -> Iterator[Clients]:
    """The blocking façades; the others do the same by construction, see ``clients/test_twins.py``."""
    made = Clients(url, "sync")
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def twins(request: pytest.FixtureRequest, url: str) -> Iterator[Clients]:
    """The façades of each kind, for what the drivers and the façades themselves do."""
    made = Clients(url, request.param)
    yield made
    made.close()


@pytest.fixture
def flows(url: str) -> Iterator[FlowProducer]:
    with FlowProducer(url) as producer:
        yield producer


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url) as made:
        yield made


@pytest.fixture
def hand(url: str) -> Iterator[Hand]:
    made = Hand(url)
    yield made
    made.driver.close()


READERS: dict[str, Callable[[Any, str], Any]] = {
    "string": lambda client, key: client.dump(key) if key.endswith(":done") else client.get(key),
    "hash": lambda client, key: client.hgetall(key),
    "set": lambda client, key: client.smembers(key),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    "stream": lambda client, key: client.xrange(key),
}


@pytest.fixture
def dump(redis_client: Any) -> Dump:
    def take(*, events: bool = True) -> dict[str, Any]:
        keys = [key for key in redis_client.keys("*") if events or not key.endswith(":events")]
        kinds = {key: redis_client.type(key) for key in sorted(keys)}
        return {key: READERS[kind](redis_client, key) for key, kind in kinds.items() if kind != "none"}

    return take


class Record:
    """A handler that records what it was called for."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.calls, self.ended = set(broken), Counter[str](), list[str]()
        self.started: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, ctx: Any) -> str:
        with self.lock:
            self.calls[ctx.node] += 1
            self.started.append(ctx.node)
            early = set(ctx.inputs) - set(self.ended)
        assert not early, early
        if ctx.node in self.broken:
            raise ValueError(f"{ctx.node} is broken")
        with self.lock:
            self.ended.append(ctx.node)
        return f"{ctx.node}!"


@pytest.fixture
def recorder() -> type[Record]:
    """Makes handlers that record what they are called for."""
    return Record


@pytest.fixture
def frequent_chores(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ``usefixtures``: the workers of the test do their chores ten times as often."""
    monkeypatch.setattr("glidemq_orchestrate.worker.services.worker.UPKEEP_SECONDS", 0.2)


@pytest.fixture
def work(run_worker: RunWorker) -> Work:
    """What a worker of the queues ``etl`` and ``spark`` does with jobs named ``work``."""
    made = Work()
    made.worker = run_worker(["etl", "spark"], {"work": made}, concurrency=8)
    return made
