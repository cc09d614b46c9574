"""Asks the server what time it is, so that no wall clock of a client decides anything."""

from __future__ import annotations

import logging
from typing import Final

from glidemq_orchestrate._protocol.call import Op, ask
from glidemq_orchestrate._protocol.server.server import server_time_us
from glidemq_orchestrate.clock import SYNC_EVERY_MS, Clock, ServerClock
from glidemq_orchestrate.errors import GlideMQError, TransportError

FIRST_TIMES: Final = 3

logger = logging.getLogger("glidemq_orchestrate.clock")


def learn_time_well(clock: Clock) -> Op[None]:
    """``learn_time``, by the best of some answers: the first may have been slow."""
    for _ in range(FIRST_TIMES):
        yield from learn_time(clock, every_ms=0)


def learn_time(clock: Clock, *, every_ms: int = SYNC_EVERY_MS) -> Op[None]:
    """Have the clock learn the server's time, where that was longer ago than ``every_ms``.

    A server that does not tell its time changes nothing.
    """
    if not isinstance(clock, ServerClock) or not clock.begin_sync(every_ms=every_ms):
        return
    asked_us = clock.monotonic_us()
    try:
        server_us = yield from ask(server_time_us())
    except TransportError:
        clock.forget_sync()  # what comes next tells that the server cannot be reached
    except GlideMQError as exc:
        logger.warning(
            "the server does not tell its time, so this machine's clock decides about leases and delays; "
            "let the user run TIME: %s",
            exc,
            extra={"action": "server_time"},
        )
    else:
        clock.learn(server_us, asked_us)
