"""What a job may choose: the session, its settings, files of packages, and the name of a user.

``conf`` in the payload of a step may hold settings of a session, such as ``spark.driver.memory``, beside
settings of Spark SQL for the step alone: the step then runs in a session that has them. ``"session": "own"``
requests one that no other step has used or will use.

Settings can name files, classes and commands. So a payload may set only those of ``RESOURCES``, and those
that the worker's ``GLIDEMQ_SPARK_STEP_CONF`` allows: names and patterns, separated by commas, such as
``spark.jars.packages,spark.hadoop.fs.s3a.*``.

The identity of a step is the settings ``spark.glidemq.queue``, ``job``, ``node``, ``flow``, ``attempt`` and
``user``, as far as the job has them. Spark's pages and its event log show them: the Spark jobs of a step have
them as properties, its SQL queries as settings, and a separate driver as settings of its application.
``user`` comes from the payload and serves reports and accounting: it is not verified, and Spark and the file
systems do not use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from glidemq_orchestrate.spark.setup.spark_settings import CONF_VARIABLE, setting
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import ImportNotAllowed, InvalidCall, import_allowed
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER_FIELD: Final = "user"
IDENTITY_PREFIX: Final = "spark.glidemq."
IDENTITY_PARTS: Final = ("queue", "job", "node", "flow", "attempt", USER_FIELD)
MAX_USER_CHARACTERS: Final = 200


def identity_of(title: str, ctx: Context) -> dict[str, str]:
    """The identity of a step, as settings.

    Raises:
        InvalidCall: The user in its payload is not a name; ``title`` begins the message.
    """
    given: Json = ctx.data.get(USER_FIELD) if isinstance(ctx.data, dict) else None
    user = "" if given is None else given
    if not isinstance(user, str) or not user.isprintable() or len(user) > MAX_USER_CHARACTERS:
        raise InvalidCall(
            f"{title}: user must be a name of at most {MAX_USER_CHARACTERS} printable characters"
        )
    values = (ctx.queue, ctx.job_id, ctx.node or "", ctx.flow_id or "", str(ctx.attempt), user)
    return {
        f"{IDENTITY_PREFIX}{part}": value for part, value in zip(IDENTITY_PARTS, values, strict=True) if value
    }


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
"""The settings that any payload may set."""
OWN: Final = "own"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session that a step requests.

    Attributes:
        conf: The settings that differ from the worker's, sorted by name.
        is_own: Whether no other step may use it.
    """

    conf: tuple[tuple[str, str], ...] = ()
    is_own: bool = False

    @classmethod
    def of(cls, data: Json, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the payload of a step.

        Raises:
            InvalidCall: It sets something that it may not set, or names an unknown kind of session.
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
    names: Iterable[str], patterns: Sequence[str], environment: Mapping[str, str] = os.environ
) -> None:
    """Refuse settings that match neither the patterns nor what the worker allows.

    Raises:
        InvalidCall: There are such settings; the message names them.
    """
    text = environment.get(STEP_CONF_VARIABLE, "")
    allowed = [*patterns, *filter(None, (part.strip() for part in text.split(",")))]
    if refused := sorted(name for name in names if not any(fnmatchcase(name, one) for one in allowed)):
        raise InvalidCall(
            f"the settings of a job may not contain {', '.join(refused)}: only the worker sets "
            f"these (GLIDEMQ_SPARK_CONF), except those listed in its {STEP_CONF_VARIABLE}"
        )


def settings_in(conf: Json, where: str = "") -> Mapping[str, str | int | float]:
    """The settings in a payload; none if it has no such field.

    Raises:
        InvalidCall: They are not an object of plain values; ``where`` begins the message.
    """
    conf = {} if conf is None else conf
    if isinstance(conf, dict):
        plain = {name: value for name, value in conf.items() if isinstance(value, str | int | float)}
        if len(plain) == len(conf):
            return plain
    raise InvalidCall(f"{where}conf must be an object of settings with plain values")


def packaged_file(title: str, name: str, allowed: Sequence[str], form: str) -> Traversable:
    """A file of a package that the worker may import from, by a name such as ``package:path/of/file``.

    Raises:
        InvalidCall: The name has another form, the package may not be imported, or it has no such file;
            ``title`` begins the message.
    """
    package, _, path = name.partition(":")
    parts = path.split("/")
    if not package or any(part in {"", ".", ".."} for part in parts):
        raise InvalidCall(f"{title}: a file must be written {form}")
    try:
        found = files(import_allowed(package, allowed)).joinpath(*parts)
    except ImportNotAllowed as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    except Exception as exc:
        raise InvalidCall(f"{title}: {package} cannot be imported: {type(exc).__name__}") from exc
    if not found.is_file():
        raise InvalidCall(f"{title}: the package {package} has no file {path}")
    return found


def location_of(ctx: Context) -> str:
    """The location in the payload of a step.

    Raises:
        Unrecoverable: It has none.
    """
    location = ctx.data.get("location") if isinstance(ctx.data, dict) else None
    if not isinstance(location, str) or not location:
        raise Unrecoverable("this step needs a location: a directory that all workers can reach")
    return location.rstrip("/")


def is_of_session(name: str) -> bool:
    """Whether a setting is fixed when a session is built; those of Spark SQL can change later."""
    return name.startswith("spark.") and not name.startswith("spark.sql.")


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a step requests of its engine.

    Attributes:
        title: Its name in messages.
        conf: Settings of Spark SQL for it alone.
        patience: It fails after this many seconds without any executor.
        identity: See ``identity_of``.
    """

    title: str
    conf: Mapping[str, Json]
    patience: float
    identity: Mapping[str, str]

    def description(self, ctx: Context) -> str:
        """Its name on Spark's own pages."""
        user = self.identity.get(f"{IDENTITY_PREFIX}{USER_FIELD}", "")
        of_user = f", {user}" if user else ""
        return f"{ctx.queue}: {ctx.node or self.title} ({ctx.job_id}, attempt {ctx.attempt}{of_user})"


def identify(spark: SparkSession, identity: Mapping[str, str]) -> None:
    """Attach an identity to the queries of a session."""
    for name, value in identity.items():
        spark.conf.set(name, value)


def configure(
    title: str,
    spark: SparkSession,
    conf: Mapping[str, Json],
    built_with: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Apply the settings of a step to its session; those that the session was built with may repeat.

    Raises:
        InvalidCall: A running session cannot change one of them.
    """
    for name, value in conf.items():
        text = setting(value)
        if not spark.conf.isModifiable(name):
            if built_with.get(name) == text:
                continue
            raise InvalidCall(
                f"{title}: {name} is not a setting of Spark SQL that a step may change; the worker sets "
                f"those of the context, in {CONF_VARIABLE}"
            )
        spark.conf.set(name, text)
