"""A pytest plugin: a real Valkey, workers in threads, and a way to wait that says what it saw last.

It is there as soon as this package and pytest are installed (extra ``testing``):

    def test_it(glidemq_url, run_worker, eventually):
        run_worker(["etl"], {"clean": lambda ctx: ctx.data * 2})
        assert Queue("etl", glidemq_url).add_and_wait("clean", 21) == 42

Loaded in every run of pytest, so it imports nothing heavy before a fixture is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from glidemq_orchestrate.embedded import EmbeddedServer
    from glidemq_orchestrate.handler import Handler, Handlers
    from glidemq_orchestrate.settings import Address
    from glidemq_orchestrate.worker import Worker

__all__ = [
    "Eventually",
    "RunWorker",
    "RunningWorker",
    "eventually",
    "glidemq_server",
    "glidemq_url",
    "run_worker",
]

T = TypeVar("T")

END_SECONDS = 20.0


class Eventually(Protocol):
    """Waits until a predicate answers something true and returns that; fails with the last answer."""

    def __call__(self, predicate: Callable[[], T], timeout: float = 5.0) -> T:
        """Ask again and again, for at most ``timeout`` seconds."""


class RunningWorker:
    """A worker in a daemon thread.

    Attributes:
        worker: The worker.
        error: What it raised; None while it runs, and after a clean end.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start it and wait until it serves its queues.

        Raises:
            AssertionError: It could not start.
        """
        self._thread.start()
        while not self.worker.ready.wait(0.05):
            if not self._thread.is_alive():
                raise AssertionError(f"the worker did not start: {self.error!r}") from self.error

    def stop(self) -> None:
        """Stop it and wait for its end. A repeat does nothing.

        Raises:
            AssertionError: It does not end, or ended by an error.
        """
        self.worker.stop()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            raise AssertionError(f"the worker did not end within {END_SECONDS:.0f} s")
        if self.error is not None:
            raise AssertionError(f"the worker ended by an error: {self.error!r}") from self.error

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as exc:  # noqa: BLE001  shown by stop()
            self.error = exc


class RunWorker(Protocol):
    """Starts a worker in a thread; it is stopped at the end of the test."""

    def __call__(
        self,
        queues: Sequence[str],
        handlers: Handlers | Mapping[str, Handler],
        url: Address = None,
        *,
        may_leave_active: bool = False,
        **options: Any,
    ) -> RunningWorker:
        """Serve ``queues`` at ``url``, or at ``glidemq_url``; ``options`` are those of ``Worker``."""


@pytest.fixture(scope="session")
def glidemq_server() -> Iterator[EmbeddedServer]:
    """A real Valkey for the whole run, on a free port (extra ``embedded``)."""
    from glidemq_orchestrate.embedded import EmbeddedServer  # noqa: PLC0415  only when used

    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def glidemq_url(glidemq_server: EmbeddedServer) -> str:
    """The URL of the server; its database is empty when the test begins, its functions stay loaded."""
    from redis import Redis  # noqa: PLC0415  only when used

    with Redis.from_url(glidemq_server.url.replace("valkey://", "redis://")) as client:
        client.flushall()
    return glidemq_server.url


@pytest.fixture
def run_worker(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    """A factory of workers in threads.

    At the end of the test they are stopped. The test fails when one raised, did not end, or left a job
    active, which a worker never should; ``may_leave_active=True`` is for tests that hold jobs themselves.
    """
    yield from start_workers(request)


def start_workers(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    """What the fixture ``run_worker`` does, for fixtures of your own."""
    started: list[tuple[RunningWorker, Address, Sequence[str]]] = []

    def start(
        queues: Sequence[str],
        handlers: Handlers | Mapping[str, Handler],
        url: Address = None,
        *,
        may_leave_active: bool = False,
        **options: Any,
    ) -> RunningWorker:
        from glidemq_orchestrate.worker import Worker  # noqa: PLC0415  only when used

        address = url or request.getfixturevalue("glidemq_url")
        options = {"shutdown_timeout": timedelta(seconds=1)} | options
        worker = Worker(address, queues=queues, handlers=_registry(handlers), **options)
        running = RunningWorker(worker)
        started.append((running, address, () if may_leave_active else queues))
        running.start()
        return running

    yield start
    for running, _, _ in started:
        running.worker.stop()
    for running, _, _ in started:
        running.stop()
    for _, address, queues in started:
        _refuse_active(address, queues)


@pytest.fixture
def eventually() -> Eventually:
    """Waits for a predicate; see ``Eventually``."""

    def wait(predicate: Callable[[], T], timeout: float = 5.0) -> T:
        end = time.monotonic() + timeout
        while not (last := predicate()):
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout} s; last value: {last!r}")
            time.sleep(0.02)
        return last

    return wait


def _registry(handlers: Handlers | Mapping[str, Handler]) -> Handlers:
    from glidemq_orchestrate.handler import Handlers  # noqa: PLC0415  only when used

    if isinstance(handlers, Handlers):
        return handlers
    registry = Handlers()
    for name, function in handlers.items():
        registry.handler(name)(function)
    return registry


def _refuse_active(url: Address, queues: Sequence[str]) -> None:
    from glidemq_orchestrate.client import Queue  # noqa: PLC0415  only when used
    from glidemq_orchestrate.job import JobState  # noqa: PLC0415  only when used

    for name in queues:
        with Queue(name, url) as queue:
            if count := queue.counts(indexed_only=True).get(JobState.ACTIVE, 0):
                raise AssertionError(f"the worker of queue {name} has stopped and left {count} jobs active")
