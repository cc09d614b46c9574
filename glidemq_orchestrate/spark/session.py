"""The one warm SparkSession of a worker process: built once, checked before each step, ended with its JVM.

The JVM and what it starts do not outlive the process, also when that is killed; a forked child has none.
Independent of jobs. Settings come from the environment:

* ``GLIDEMQ_SPARK_MASTER``: a Spark master URL, ``local[*]`` (all cores of this machine) when unset.
* ``GLIDEMQ_SPARK_CONF``: a JSON object of additional Spark settings, which override the ones chosen here.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
import subprocess
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.errors import ConfigurationError, JavaMissing
from glidemq_orchestrate.importing import importing
from glidemq_orchestrate.lifeline.lifeline import lifeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MASTER_VARIABLE: Final = "GLIDEMQ_SPARK_MASTER"
CONF_VARIABLE: Final = "GLIDEMQ_SPARK_CONF"
OLDEST_JAVA: Final = 17
JVM_EXIT_SECONDS: Final = 15
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)  # as Spark itself redacts
_ADVICE: Final = (
    f"install a Java runtime of version {OLDEST_JAVA} or newer "
    "(for example the package openjdk-17-jre-headless) and point JAVA_HOME or PATH to it"
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of a session.

    Attributes:
        master: Spark master URL.
        conf: Spark settings that override the defaults of ``spark_conf``.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SparkSettings:
        """Read the two variables in the module's docstring; an empty one counts as unset.

        Raises:
            ConfigurationError: The conf is not a JSON object of plain values, or the master is a Spark
                Connect URL.
        """
        environment = os.environ if environment is None else environment
        master = environment.get(MASTER_VARIABLE) or cls().master
        if master.startswith("sc://"):
            raise ConfigurationError(
                f"{MASTER_VARIABLE}={master}: a warm session needs a Spark master "
                "(local[*], spark://, yarn, k8s://), not a Spark Connect URL"
            )
        return cls(master=master, conf=_read_conf(environment.get(CONF_VARIABLE) or "{}"))

    def spark_conf(self) -> dict[str, str]:
        """All Spark settings: UTC, FAIR scheduling, no UI, plain timestamps; ``conf`` overrides them."""
        settings = {
            "spark.app.name": "glidemq-worker",
            "spark.scheduler.mode": "FAIR",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        }
        if self.master.startswith("local"):
            settings |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(max(4, os.cpu_count() or 1)),
            }
        return {**settings, **self.conf, "spark.master": self.master}


class WarmSession:
    """Holds at most one SparkSession; every method may be called from any thread.

    Example:
        >>> warm = WarmSession()
        >>> warm.get().range(3).count()  # doctest: +SKIP
        3
        >>> warm.stop()
    """

    def __init__(self, settings: SparkSettings | None = None) -> None:
        """Build no session yet. Without settings the environment is read when the session is built."""
        self._settings = settings
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def get(self) -> SparkSession:
        """Return the session; build one first when there is none, or when its JVM or context has ended.

        Steps that still use a dead session fail; only the first caller builds the new one.

        Raises:
            JavaMissing: No Java of version 17 or newer.
            ConfigurationError: PySpark is not installed, or a setting is wrong.
        """
        with self._lock:
            if self._spark is not None and not is_alive(self._spark):
                logger.warning("the Spark session has died; building a new one")
                self._end()
            if self._spark is None:
                self._spark = _build(self._settings or SparkSettings.from_environment())
                atexit.register(self.stop)
            return self._spark

    def stop(self) -> None:
        """End the session and its JVM. Nothing is left running; harmless without a session."""
        with self._lock:
            if self._spark is not None:
                self._end()
                atexit.unregister(self.stop)

    def after_fork(self) -> None:
        """Leave the session to the parent; a child builds its own when it needs one."""
        self._lock = threading.Lock()
        spark, self._spark = self._spark, None
        if spark is not None:
            atexit.unregister(self.stop)
            # Py4J reports every collected object to the JVM, over a connection that belongs to the parent.
            _OF_PARENTS.extend([spark, *_forget_session()])

    def _end(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            _end(spark)


warm_session: Final = WarmSession()
_OF_PARENTS: Final[list[object]] = []
os.register_at_fork(after_in_child=warm_session.after_fork)


def is_alive(spark: SparkSession) -> bool:
    """Whether the session's JVM replies and its context runs: one call to the JVM."""
    context = spark.sparkContext._jsc  # noqa: SLF001  PySpark has no public way to ask
    if context is None:
        return False
    try:
        return not context.sc().isStopped()
    except Exception:  # noqa: BLE001  py4j raises half a dozen unrelated classes for a dead JVM
        return False


def require_java(environment: Mapping[str, str] | None = None) -> int:
    """Return the major version of the Java that Spark would start.

    Raises:
        JavaMissing: There is none, it cannot be run, or it is too old; the message names what to install.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH", ""))
    if java is None:
        raise JavaMissing(f"Spark steps need Java and none was found: {_ADVICE}")
    try:
        output = subprocess.run(  # noqa: S603  Java, as the environment names it
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as exc:
        raise JavaMissing(f"Spark steps need Java, but {java} cannot be run: {_ADVICE}") from exc
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    version = int(match.group(1)) if match else 0
    if version < OLDEST_JAVA:
        raise JavaMissing(
            f"Spark steps need Java {OLDEST_JAVA} or newer, {java} is version {version}: {_ADVICE}"
        )
    return version


def _read_conf(text: str) -> dict[str, str]:
    try:
        conf = json.loads(text)
    except ValueError as exc:
        raise ConfigurationError(f"{CONF_VARIABLE} is not valid JSON: {exc}") from exc
    if not isinstance(conf, dict):
        raise ConfigurationError(
            f'{CONF_VARIABLE} must be a JSON object such as {{"spark.driver.memory": "2g"}}'
        )
    for key, value in conf.items():
        if not isinstance(value, str | int | float):
            raise ConfigurationError(
                f"{CONF_VARIABLE}: the value of {key} must be a string, a number, true or false"
            )
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}


def _build(settings: SparkSettings) -> SparkSession:
    require_java()
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # works when the host name does not resolve
    with warnings.catch_warnings():
        # PySpark warns about versions of pandas at its first use, whether a step uses pandas or not.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            with importing():
                from pyspark import SparkConf, SparkContext
                from pyspark.sql import SparkSession
        except ImportError as exc:
            raise ConfigurationError(
                "Spark steps need PySpark: pip install 'glidemq-orchestrate[spark]'"
            ) from exc
        given = settings.spark_conf()
        conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
        with lifeline.marking():
            # PySpark writes what it starts the JVM with into its command line, which every user can read.
            shown = [(name, value) for name, value in given.items() if not _SECRET.search(name)]
            SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))  # noqa: SLF001
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
    gateway: Any = SparkContext._gateway  # noqa: SLF001  PySpark has no public way to ask
    if process := getattr(gateway, "proc", None):  # none when another process has started the JVM
        lifeline.watch(process.pid)
    logger.info("Spark session ready", extra={"action": "spark_started", "master": settings.master})
    return spark


def _end(spark: SparkSession) -> None:
    """Stop the context, then the JVM, and make PySpark forget both, whether or not they are still alive."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001  PySpark keeps the JVM for the life of the process otherwise
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # PySpark warns about a JVM that has ended, which is cleaned up here
        spark.stop()
    with suppress(Exception):
        gateway.shutdown()
    _forget_session()
    if gateway is not None:
        _end_process(gateway.proc)


def _forget_session() -> list[object]:
    """Make PySpark forget its JVM, or the next session would try to reach it; returns what it knew."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    places = (
        (SparkContext, ("_active_spark_context", "_gateway", "_jvm")),
        (SparkSession, ("_instantiatedSession", "_activeSession")),
    )
    known = [getattr(where, name) for where, names in places for name in names]
    for where, names in places:
        for name in names:
            setattr(where, name, None)
    return known


def _end_process(process: subprocess.Popen[bytes] | None) -> None:
    """Close the JVM's standard input, which ends it, and wait; kill it when it hangs."""
    if process is None:
        return
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        logger.warning("the Spark JVM did not end within %s s; killing it", JVM_EXIT_SECONDS)
        process.kill()
        process.wait()
    lifeline.forget(process.pid)
