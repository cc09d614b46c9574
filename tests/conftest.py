"""One real Valkey for the whole run, workers in threads, and a way to wait that says what it saw last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import pytest

from glidemq_orchestrate import EmbeddedServer, Handlers, Worker
from glidemq_orchestrate.handler import Handler

T = TypeVar("T")

END_SECONDS = 20.0


class Eventually(Protocol):
    """Waits until a predicate answers something true, and returns it."""

    def __call__(self, predicate: Callable[[], T], timeout: float = 5.0) -> T: ...


class RunningWorker:
    """A worker in a daemon thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.thread.start()
        while not self.worker.ready.wait(0.05):
            if not self.thread.is_alive():
                raise AssertionError(f"the worker did not start: {self.error!r}")

    def stop(self) -> None:
        """Stop it, and fail when it does not end or ended by an error."""
        self.worker.stop()
        self.thread.join(END_SECONDS)
        assert not self.thread.is_alive(), "the worker did not end"
        if self.error is not None:
            raise AssertionError("the worker ended by an error") from self.error

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as exc:  # noqa: BLE001  shown by stop()
            self.error = exc


class RunWorker(Protocol):
    """Starts a worker that serves the queues; stopped at the end of the test."""

    def __call__(
        self,
        queues: Sequence[str],
        handlers: Handlers | Mapping[str, Handler],
        url: str | None = None,
        **kw: Any,
    ) -> RunningWorker: ...


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """The server's URL; its database is empty, its functions stay loaded."""
    from redis import Redis  # noqa: PLC0415  unit tests do without a driver

    with Redis.from_url(server.url.replace("valkey://", "redis://")) as client:
        client.flushall()
    return server.url


@pytest.fixture
def redis_client(url: str) -> Iterator[Any]:
    from redis import Redis  # noqa: PLC0415  unit tests do without a driver

    with Redis.from_url(url.replace("valkey://", "redis://"), decode_responses=True) as client:
        yield client


@pytest.fixture
def run_worker(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    started: list[RunningWorker] = []

    def start(
        queues: Sequence[str],
        handlers: Handlers | Mapping[str, Handler],
        url: str | None = None,
        **kw: Any,
    ) -> RunningWorker:
        if not isinstance(handlers, Handlers):
            registry = Handlers()
            for name, function in handlers.items():
                registry.handler(name)(function)
            handlers = registry
        options: dict[str, Any] = {"shutdown_timeout": timedelta(seconds=1)} | kw
        address = url or request.getfixturevalue("url")
        running = RunningWorker(Worker(address, queues=queues, handlers=handlers, **options))
        started.append(running)
        running.start()
        return running

    yield start
    for running in started:
        running.worker.stop()
    for running in started:
        running.stop()


@pytest.fixture
def eventually() -> Eventually:
    def wait(predicate: Callable[[], T], timeout: float = 5.0) -> T:
        end = time.monotonic() + timeout
        while not (last := predicate()):
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout} s; last value: {last!r}")
            time.sleep(0.02)
        return last

    return wait
