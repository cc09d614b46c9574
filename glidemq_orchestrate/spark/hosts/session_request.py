"""Which session a step wants: the one that steps share, one with other settings, or one of its own. Pure.

In the payload of a step, ``conf`` may hold, beside settings of Spark SQL for the step alone, settings of a
session, such as ``spark.driver.memory``: it then runs in one that has them. ``"session": "own"`` asks for one
that no other step has used or will use.

Settings can name files, classes and commands, so a payload may hold only those of ``RESOURCES``, and what the
worker's ``GLIDEMQ_SPARK_STEP_CONF`` allows: names and patterns, separated by commas, such as
``spark.jars.packages,spark.hadoop.fs.s3a.*``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Self

from glidemq_orchestrate.spark.engine import settings_in
from glidemq_orchestrate.spark.settings import setting
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

STEP_CONF_VARIABLE: Final = "GLIDEMQ_SPARK_STEP_CONF"
RESOURCES: Final = (
    "spark.cores.max",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.initialExecutors",
    "spark.dynamicAllocation.maxExecutors",
    "spark.dynamicAllocation.minExecutors",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.pyspark.memory",
    "spark.kryoserializer.buffer.max",
    "spark.memory.fraction",
    "spark.memory.offHeap.enabled",
    "spark.memory.offHeap.size",
    "spark.memory.storageFraction",
    "spark.network.timeout",
    "spark.speculation",
    "spark.task.cpus",
    "spark.task.maxFailures",
)
"""What any payload may ask for."""
OWN: Final = "own"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A session that a step wants.

    Attributes:
        conf: Settings in which it differs from the worker's, sorted by name.
        is_own: Whether no other step may use it.
    """

    conf: tuple[tuple[str, str], ...] = ()
    is_own: bool = False

    @classmethod
    def of(cls, data: Json, environment: Mapping[str, str] | None = None) -> Self:
        """Read the payload of a step.

        Raises:
            InvalidCall: It asks for a setting that it may not have, or for a session that there is not.
        """
        fields = data if isinstance(data, dict) else {}
        session = fields.get("session")
        if session is not None and session not in ("shared", OWN):
            raise InvalidCall(f'session must be "shared" or "{OWN}"')
        conf = settings_in(fields.get("conf"))
        named = {name: setting(value) for name, value in conf.items() if is_of_session(name)}
        check_allowed(named, RESOURCES, environment)
        return cls(tuple(sorted(named.items())), session == OWN)


def check_allowed(
    names: Iterable[str], patterns: Sequence[str], environment: Mapping[str, str] | None = None
) -> None:
    """Refuse settings that fit none of the patterns, nor what the worker allows.

    Raises:
        InvalidCall: There are such; the message names them.
    """
    text = (os.environ if environment is None else environment).get(STEP_CONF_VARIABLE, "")
    allowed = [*patterns, *filter(None, (part.strip() for part in text.split(",")))]
    if refused := sorted(name for name in names if not any(fnmatchcase(name, one) for one in allowed)):
        raise InvalidCall(
            f"the settings of a job may not contain {', '.join(refused)}: they are the worker's, in "
            f"GLIDEMQ_SPARK_CONF, unless its {STEP_CONF_VARIABLE} names them"
        )


def is_of_session(name: str) -> bool:
    """Whether a setting is one that a session is built with; those of Spark SQL can change later."""
    return name.startswith("spark.") and not name.startswith("spark.sql.")
