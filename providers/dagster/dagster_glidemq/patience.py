"""Waits out outages of the server. Independent of Dagster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, before_sleep_log, retry_if_exception, stop_after_delay, wait_random_exponential

from glidemq_orchestrate.errors import TransportError

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Patience:
    """Repeats calls that the server does not answer. A call must be safe to repeat.

    Args:
        seconds: How long an outage may last; each call has so long for itself.
    """

    def __init__(self, seconds: float) -> None:
        self._retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(seconds),
            wait=wait_random_exponential(multiplier=0.2, max=2.0),
            before_sleep=before_sleep_log(_logger, logging.WARNING),
            reraise=True,
        )

    def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns.

        Raises:
            TransportError: The server did not answer in time, or refuses the client.
        """
        return self._retrying.copy()(call)


def _may_pass(exc: BaseException) -> bool:
    return isinstance(exc, TransportError) and exc.retryable
