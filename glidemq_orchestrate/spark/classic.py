"""The engine for every master that Spark's own driver talks to: ``local``, ``spark://``, YARN, Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glidemq_orchestrate.spark.calls import Calls
from glidemq_orchestrate.spark.ended import SessionGone
from glidemq_orchestrate.spark.engine import Asked, Step, configure, identify
from glidemq_orchestrate.spark.failures import explained, remedy_of
from glidemq_orchestrate.spark.isolation import sessions_on
from glidemq_orchestrate.spark.session import WarmSession, is_alive
from glidemq_orchestrate.spark.sharing import active
from glidemq_orchestrate.worker.handlers.context import Context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from glidemq_orchestrate.spark.watch import Starvation


class ClassicEngine:
    """Steps on the warm session of this process, and its JVM; see ``Engine``.

    A session that has died is built again for the next step.
    """

    def __init__(self, warm: WarmSession) -> None:
        self._warm = warm

    def start(self) -> None:
        """See ``Engine.start``. On this machine it also runs a first job, which takes seconds."""
        spark = self._warm.get()
        if str(spark.sparkContext.master).startswith("local"):
            spark.range(1).count()

    def is_alive(self) -> bool:
        """See ``Engine.is_alive``."""
        return self._warm.is_alive

    def session(self) -> SparkSession:
        """See ``Engine.session``."""
        return self._warm.get()

    @contextmanager
    def step(self, ctx: Context, asked: Asked) -> Iterator[Step]:
        """See ``Engine.step``."""
        from glidemq_orchestrate.spark.watch import watched  # noqa: PLC0415  not needed at start-up

        shared = self._warm.get()
        try:
            with _session_on(shared) as spark:
                if asked.conf:
                    configure(asked.title, spark, asked.conf, dict(spark.sparkContext.getConf().getAll()))
                identify(spark, asked.identity)
                calls = Calls()
                with watched(spark, ctx, asked, calls) as watch, active(spark, calls, watch.group):
                    yield _Step(spark, watch)
        except Exception as exc:
            if not is_alive(shared):
                told = str(exc)
                raise SessionGone(
                    "the Spark session was lost", explained(told) if remedy_of(told) else ""
                ) from exc
            raise

    def stop(self) -> None:
        """See ``Engine.stop``."""
        self._warm.stop()


@contextmanager
def _session_on(shared: SparkSession) -> Iterator[SparkSession]:
    """A session for a step, on the context of another; what it has cached is released at the end."""
    sessions = sessions_on(shared)
    spark = sessions.new()
    try:
        yield spark
    finally:
        sessions.clear(spark)


@dataclass(frozen=True, slots=True)
class _Step:
    """See ``Step``."""

    spark: SparkSession
    watch: Starvation

    @property
    def has_given_up(self) -> bool:
        return self.watch.has_given_up
