"""The step that runs in this thread, or has started it. Independent of Spark."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.calls import Calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Current:
    """A step that runs.

    Attributes:
        spark: Its session.
        calls: Its calls of the JVM.
        tag: That of its Spark jobs; empty where these are not on a context of this process.
        undo: What ends what would outlast it: streams, and RDDs that it has cached.
        checkpoints: The directory of its checkpoints, as Java has it; None if it has named none.
    """

    spark: SparkSession
    calls: Calls
    tag: str = ""
    undo: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)
    checkpoints: Any = None


current: Final[contextvars.ContextVar[Current | None]] = contextvars.ContextVar("step", default=None)
