"""Runs code of users for a triggerer, in threads that nothing waits for.

Those of ``asyncio.to_thread`` are few, and all triggers share them: some that hang stop the triggerer, and
the process waits for them when it should end. Imports no Airflow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_THREADS: Final = 32
_running: Final[set[threading.Thread]] = set()


async def in_own_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own; one that nobody awaits any more goes on, and harms nobody.

    Raises:
        RuntimeError: Too many have not returned yet; it was not called.
        BaseException: Whatever the function raises.
    """
    if len(_running) >= MAX_THREADS:
        raise RuntimeError(f"{MAX_THREADS} callbacks have not returned yet, so this one is not called")
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(
        target=_run, args=(function, loop, future), name="glidemq-callback", daemon=True
    )
    _running.add(thread)
    thread.start()
    return await future


def _run(function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
    try:
        tell = partial(_settle, future, function())
    except BaseException as exc:  # noqa: BLE001  raised where it is awaited
        # A future takes no StopIteration, and one that holds SystemExit would end the loop.
        is_plain = isinstance(exc, Exception) and not isinstance(exc, StopIteration)
        told = exc if is_plain else RuntimeError(f"{type(exc).__name__}: {exc}")
        tell = partial(_settle, future, None, told)
    finally:
        _running.discard(threading.current_thread())
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(tell)


def _settle(future: asyncio.Future[Any], result: object, raised: BaseException | None = None) -> None:
    if future.done():  # nobody waits any more
        return
    if raised is None:
        future.set_result(result)
    else:
        future.set_exception(raised)
