"""Synchronizes with the server's time, so that nothing depends on the wall clock of a client."""

from __future__ import annotations

import logging
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.foundation.clock import SYNC_EVERY_MS, Clock, ServerClock
from glidemq_orchestrate.server.calls import server_time_us
from glidemq_orchestrate.wire.call import Op, ask

FIRST_TIMES: Final = 3

logger = logging.getLogger("glidemq_orchestrate.foundation.clock")


def learn_time_well(clock: Clock) -> Op[None]:
    """``learn_time`` with several replies, since the first may be slow; the clock keeps the best."""
    for _ in range(FIRST_TIMES):
        yield from learn_time(clock, every_ms=0)


def learn_time(clock: Clock, *, every_ms: int = SYNC_EVERY_MS) -> Op[None]:
    """Synchronize the clock with the server's if the last time was more than ``every_ms`` ago.

    Changes nothing if the server refuses TIME.
    """
    if not isinstance(clock, ServerClock) or not clock.begin_sync(every_ms=every_ms):
        return
    asked_us = clock.monotonic_us()
    try:
        server_us = yield from ask(server_time_us())
    except GlideMQError as exc:
        if isinstance(exc, TransportError) or exc.code is None:  # not a reply to TIME
            clock.forget_sync()  # the next call will report the error
            return
        logger.warning(
            "the server refuses TIME, so leases and delays depend on this machine's clock. "
            "Fix: allow the user to run TIME: %s",
            exc,
            extra={"action": "server_time"},
        )
    else:
        clock.learn(server_us, asked_us)
