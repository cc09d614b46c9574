"""A pytest plugin: a real Valkey, workers in threads, and waiting for a predicate.

It is active once this package and pytest are installed (extra ``testing``):

    def test_it(glidemq_url, run_worker, eventually):
        run_worker(["etl"], {"clean": lambda ctx: ctx.data * 2})
        assert Queue("etl", glidemq_url).add_and_wait("clean", 21) == 42

It is loaded in every run of pytest, so heavy imports wait until a fixture is used.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from glidemq_orchestrate.embedded import EmbeddedServer
    from glidemq_orchestrate.foundation.durations import Duration
    from glidemq_orchestrate.settings import Address
    from glidemq_orchestrate.worker.handlers.handler import Handlers
    from glidemq_orchestrate.worker.handlers.registered import Handler
    from glidemq_orchestrate.worker.services.worker import Worker

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
# Less than the lease of a job, so that an expired lease does not cause the expected effect.
EVENT_SECONDS = 20.0
DATABASES = 10_000

# Each test uses the next database of its server, in all modules with such fixtures.
_next_database: Final[dict[str, Iterator[int]]] = {}


class Eventually(Protocol):
    """Waits until a predicate returns a true value, and returns it; fails with the last value."""

    def __call__(self, predicate: Callable[[], T], timeout: Duration = EVENT_SECONDS) -> T:
        """Call the predicate repeatedly, for at most ``timeout``."""


class RunningWorker:
    """A worker in a daemon thread.

    Attributes:
        worker: The worker.
        error: The exception that ended it; None while it runs, and after a clean end.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"glidemq-{worker.id}", daemon=True)

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
        """Stop it and wait for its end; if it does not end, cancel it. A repeat does nothing.

        Raises:
            AssertionError: It had to be cancelled, or ended with an error.
        """
        self.worker.stop()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._cancel()
            raise AssertionError(f"the worker did not end within {END_SECONDS:.0f} s")
        if self.error is not None:
            raise AssertionError(f"the worker ended with an error: {self.error!r}") from self.error

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as exc:  # noqa: BLE001  shown by stop()
            self.error = exc

    def _cancel(self) -> None:
        """Cancel its tasks: a thread cannot be killed."""
        import asyncio  # noqa: PLC0415  only when used

        if loop := self.worker.loop:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        self._thread.join(END_SECONDS)


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
    """A real Valkey for the whole run, on a free port (extra ``embedded``); one per xdist process."""
    from glidemq_orchestrate.embedded import EmbeddedServer  # noqa: PLC0415  only when used

    with EmbeddedServer(databases=DATABASES) as running:
        yield running


@pytest.fixture
def glidemq_url(glidemq_server: EmbeddedServer) -> Iterator[str]:
    """The URL of an empty database for this test only; the functions of the server stay loaded.

    A worker left over from an earlier test uses another database. At the end of the test, clients that are
    still connected to this database are disconnected, and it is emptied.
    """
    yield from own_database(glidemq_server.url)


def own_database(url: str) -> Iterator[str]:
    """The body of the fixture ``glidemq_url``, for fixtures with another server.

    ``url`` must not name a database. With N databases a number is reused after N tests; a server with a
    single database, such as a cluster, is emptied for each test.
    """
    from redis import Redis  # noqa: PLC0415  only when used

    # redis reads the metadata of its own package for each connection that tells the server its version.
    connect = partial(Redis.from_url, url.replace("valkey://", "redis://", 1), driver_info=None)
    with connect(single_connection_client=True) as client:
        count = int(client.config_get("databases")["databases"])
        number = next(_next_database.setdefault(url, itertools.count())) % max(count - 1, 1) + (count > 1)
        if number:
            client.select(number)
        client.flushdb()
    try:
        yield f"{url}/{number}" if number else url
    finally:
        with connect(db=number) as client:
            own = client.client_id()
            for other in client.client_list():
                if int(other["db"]) == number and int(other["id"]) != own:
                    client.client_kill_filter(_id=other["id"])
            client.flushdb()


@pytest.fixture
def run_worker(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    """A factory of workers in threads.

    All workers are stopped at the end of the test, even if the test or a worker failed; a worker that does
    not end is cancelled. The test fails if a worker raised, did not end, or left a job active, which must
    never happen; ``may_leave_active=True`` is for tests that hold jobs themselves.
    """
    yield from start_workers(request)


def start_workers(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    """The body of the fixture ``run_worker``, for other fixtures."""
    started: list[tuple[RunningWorker, Address, Sequence[str]]] = []
    if "glidemq_url" in request.fixturenames:
        request.getfixturevalue(
            "glidemq_url"
        )  # so that it ends after the workers, even if a URL is passed in

    def start(
        queues: Sequence[str],
        handlers: Handlers | Mapping[str, Handler],
        url: Address = None,
        *,
        may_leave_active: bool = False,
        **options: Any,
    ) -> RunningWorker:
        from glidemq_orchestrate.worker.services.worker import Worker  # noqa: PLC0415  only when used

        address = url or request.getfixturevalue("glidemq_url")
        options = {"shutdown_timeout": timedelta(seconds=1)} | options
        worker = Worker(address, queues=queues, handlers=_registry(handlers), **options)
        running = RunningWorker(worker)
        started.append((running, address, () if may_leave_active else queues))
        running.start()
        return running

    yield start
    _end(started)


def _end(started: Sequence[tuple[RunningWorker, Address, Sequence[str]]]) -> None:
    """Stop every worker, even if others fail; then raise the errors."""
    failures: list[Exception] = []

    def attempt(step: Callable[..., None], *args: Any) -> None:
        try:
            step(*args)
        except Exception as exc:  # noqa: BLE001  raised below, after everything has ended
            failures.append(exc)

    for running, _, _ in started:
        attempt(running.worker.stop)
    for running, _, _ in started:
        attempt(running.stop)
    for _, address, queues in started:
        attempt(_refuse_active, address, queues)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup("the workers did not end cleanly", failures)


@pytest.fixture
def eventually() -> Eventually:
    """Waits for a predicate; see ``Eventually``."""
    from glidemq_orchestrate.foundation.durations import seconds  # noqa: PLC0415  only when used

    def wait(predicate: Callable[[], T], timeout: Duration = EVENT_SECONDS) -> T:
        limit = seconds(timeout)
        end = time.monotonic() + limit
        while not (last := predicate()):
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit} s; last value: {last!r}")
            time.sleep(0.02)
        return last

    return wait


def _registry(handlers: Handlers | Mapping[str, Handler]) -> Handlers:
    from glidemq_orchestrate.worker.handlers.handler import Handlers  # noqa: PLC0415  only when used

    if isinstance(handlers, Handlers):
        return handlers
    registry = Handlers()
    for name, function in handlers.items():
        registry.handler(name)(function)
    return registry


def _refuse_active(url: Address, queues: Sequence[str]) -> None:
    from glidemq_orchestrate.clients.queue import Queue  # noqa: PLC0415  only when used
    from glidemq_orchestrate.jobs.states import JobState  # noqa: PLC0415  only when used

    for name in queues:
        with Queue(name, url) as queue:
            if count := queue.counts(indexed_only=True).with_elements()[JobState.ACTIVE]:
                raise AssertionError(f"the worker of queue {name} has stopped and left {count} jobs active")
