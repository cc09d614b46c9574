"""The interface of an engine, which runs steps on a session that they share; ``sessions`` has the engines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from glidemq_orchestrate.spark.setup.request import StepRequest
from glidemq_orchestrate.worker.handlers.context import Context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Step(Protocol):
    """A step that runs.

    Attributes:
        spark: Its session, which no other step has.
        has_given_up: Whether it was ended because no executor ran anything for too long.
    """

    @property
    def spark(self) -> SparkSession:
        """See the class."""

    @property
    def has_given_up(self) -> bool:
        """See the class."""


class Engine(Protocol):
    """One back end. Any thread may call it."""

    def start(self) -> None:
        """Build the session, unless it exists.

        Raises:
            JavaMissing, ConfigurationError: It cannot be built.
        """

    def is_alive(self) -> bool:
        """Whether the session replies."""

    def session(self) -> SparkSession:
        """The session, for work that belongs to no step."""

    def step(self, ctx: Context, request: StepRequest) -> AbstractContextManager[Step]:
        """Run a block as a step: with its own session, progress in ``ctx``, and an end by ``ctx.cancelled``.

        Afterwards nothing of it runs or remains in the session.

        Raises:
            InvalidCall: A step may not change one of the settings.
            SessionGone: Instead of the error of the block, if the session has ended; ``SessionClosed`` if it
                was closed and its server still runs.
        """

    def stop(self) -> None:
        """End the session, and everything that was started for it."""
