"""A test that leaves something running behind fails, by name, and what can be ended is ended."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psutil
import pytest

from tests.processes import GONE, RUN, Left, lasting, mark, marked

__all__ = ["_nothing_is_left", "pytest_fixture_setup", "pytest_sessionstart", "refuse_connected"]

T = TypeVar("T")

PATIENCE = 15.0

# Threads that fixtures of a wider scope started.
_lasting_threads: set[threading.Thread] = set()


def pytest_sessionstart() -> None:
    """Mark what is started; also in the controller of pytest-xdist, whose processes go on without it."""
    for each in (signal.SIGINT, signal.SIGQUIT):  # a shell has what it starts in the background ignore them,
        if signal.getsignal(each) is signal.SIG_IGN:  # and so would all that tests start and interrupt
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    mark()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Whatever a fixture of a wider scope starts is meant to last."""
    if fixturedef.scope == "function":
        return (yield)
    pids, threads = set(psutil.pids()), set(threading.enumerate())
    try:
        return (yield)
    finally:
        lasting.update(one.process.pid for one in marked(RUN, set(psutil.pids()) - pids))
        _lasting_threads.update(set(threading.enumerate()) - threads)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a process or a thread behind."""
    yield from nothing_is_left()


def nothing_is_left(*, kept: Callable[[str], bool] | None = None) -> Iterator[None]:
    """What the fixture does; processes whose command is ``kept``, and those below them, may stay.

    So may threads then: those that serve such a process cannot be distinguished from others.
    """
    pids, threads = set(psutil.pids()), set(threading.enumerate())
    yield
    left = [] if kept else [f"thread {thread.name}" for thread in _left_threads(threads)]
    if kept is not None:
        new = marked(RUN, set(psutil.pids()) - pids)
        lasting.update(one.process.pid for one in new if kept(one.command))
    for one in _left_processes(pids):
        left.append(str(one))
        with contextlib.suppress(psutil.Error):
            one.process.kill()
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


def _left_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    until = time.monotonic() + PATIENCE
    new = set(threading.enumerate()) - before - _lasting_threads
    # One that logs when it has ended, as Py4J's connections do, stays in the list as a thread of this kind.
    new = {thread for thread in new if not isinstance(thread, threading._DummyThread)}
    for thread in new:
        thread.join(max(until - time.monotonic(), 0.0))
    left = [thread for thread in new if thread.is_alive()]
    _lasting_threads.update(left)
    return left


def _left_processes(before: set[int]) -> list[Left]:
    def left() -> list[Left]:
        return [
            one
            for one in marked(RUN, set(psutil.pids()) - before)
            if one.process.pid not in lasting and lasting.isdisjoint(_ancestors(one.process))
        ]

    return settled(left)


def _ancestors(process: psutil.Process) -> set[int]:
    try:
        return {parent.pid for parent in process.parents()}
    except GONE:
        return set()


def refuse_connected(*clients: Any) -> None:
    """Fail the test when others are still connected to the databases of these clients."""

    def connected() -> list[dict[str, str]]:
        return [one for client in clients for one in _others(client)]

    def left() -> list[str]:
        if connected():
            gc.collect()  # this closes clients without references
        return [f"client {c['id']} (last command {c['cmd']}, idle {c['idle']} s)" for c in connected()]

    if found := settled(left):
        pytest.fail("the test left connected: " + "; ".join(found), pytrace=False)


def _others(client: Any) -> list[dict[str, str]]:
    own, database = client.client_id(), str(client.connection_pool.connection_kwargs.get("db", 0))
    every = [one for one in client.client_list() if "S" not in one["flags"]]  # its replicas stay
    return [one for one in every if one["db"] == database and int(one["id"]) != own]


def settled(look: Callable[[], list[T]]) -> list[T]:
    """What is still there once everything about to end has ended."""
    until = time.monotonic() + PATIENCE
    while (found := look()) and time.monotonic() < until:
        time.sleep(0.02)
    return found
