"""What runs steps: a session that they share, and how one of them is cancelled and watched."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from glidemq_orchestrate.spark.identity import user_of
from glidemq_orchestrate.spark.settings import CONF_VARIABLE, setting
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a step before it runs.

    Attributes:
        title: How messages call it.
        conf: Settings of Spark SQL, for it alone.
        patience: Seconds without any executor after which it fails.
        identity: Whose it is; see ``identity_of``.
    """

    title: str
    conf: Mapping[str, Json]
    patience: float
    identity: Mapping[str, str]

    def description(self, ctx: Context) -> str:
        """How Spark's own pages call it."""
        user = user_of(self.identity)
        of_user = f", {user}" if user else ""
        return f"{ctx.queue}: {ctx.node or self.title} ({ctx.job_id}, attempt {ctx.attempt}{of_user})"


class Step(Protocol):
    """A step that runs.

    Attributes:
        spark: Its session, which no other step has.
        has_given_up: Whether it was ended as no executor has run anything for so long.
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
        """Build the session; does nothing when it is there.

        Raises:
            JavaMissing, ConfigurationError: It cannot be built.
        """

    def is_alive(self) -> bool:
        """Whether the session replies."""

    def session(self) -> SparkSession:
        """The session, for what belongs to no step."""

    def step(self, ctx: Context, asked: Asked) -> AbstractContextManager[Step]:
        """Run a block as a step: with a session of its own, progress in ``ctx``, ended by ``ctx.cancelled``.

        Afterwards nothing of it runs or is kept in the session.

        Raises:
            InvalidCall: A setting is not one that a step may change.
            SessionGone: Instead of what the block raises, if the session has ended; ``SessionClosed`` if it
                was closed while its server goes on.
        """

    def stop(self) -> None:
        """End the session, and whatever was started for it."""


def settings_in(conf: Json, where: str = "") -> Mapping[str, str | int | float]:
    """The settings that a payload holds; none where it holds nothing.

    Raises:
        InvalidCall: They are no object of plain values; ``where`` begins the message.
    """
    conf = {} if conf is None else conf
    if isinstance(conf, dict):
        plain = {name: value for name, value in conf.items() if isinstance(value, str | int | float)}
        if len(plain) == len(conf):
            return plain
    raise InvalidCall(f"{where}conf must be an object of settings with plain values")


def identify(spark: SparkSession, identity: Mapping[str, str]) -> None:
    """Let the queries of a session tell whose they are."""
    for name, value in identity.items():
        spark.conf.set(name, value)


def configure(
    title: str,
    spark: SparkSession,
    conf: Mapping[str, Json],
    built_with: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Set what a step asks for in its session; what its session was chosen by is there.

    Raises:
        InvalidCall: It is not a setting that a running session can change.
    """
    for name, value in conf.items():
        text = setting(value)
        if not spark.conf.isModifiable(name):
            if built_with.get(name) == text:
                continue
            raise InvalidCall(
                f"{title}: {name} is not a setting of Spark SQL that a step may change; settings of the "
                f"context are the worker's: {CONF_VARIABLE}"
            )
        spark.conf.set(name, text)
