"""The one warm SparkSession of a process: built once, checked before each step, ended with its JVM.

The JVM and what it starts never outlive the process, even if that is killed. A forked child has no session.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.lifeline.lifeline import lifeline, patched
from glidemq_orchestrate.spark.failures import cause_and_fix
from glidemq_orchestrate.spark.setup.jvm import Scratch, require_java, write_properties
from glidemq_orchestrate.spark.setup.spark_settings import (
    CONF_VARIABLE,
    MASTER_VARIABLE,
    SparkSettings,
    require_master,
)
from glidemq_orchestrate.spark.source.registration import offer

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JVM_EXIT_SECONDS: Final = 15
_OF_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, with its JVM
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"  # the main class of a JVM that PySpark starts
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"


@dataclass(frozen=True, slots=True)
class _Running:
    """A session, and what must end with it.

    Attributes:
        spark: The session.
        jvm: Its JVM, a child of this process; None if another process has started it.
        gateway: The connection to the JVM; None if the program had a session already.
        scratch: Its temporary files; None if another process has started the JVM.
    """

    spark: SparkSession
    jvm: subprocess.Popen[bytes] | psutil.Process | None
    gateway: Any
    scratch: Scratch | None


class WarmSession:
    """Holds at most one SparkSession. Any thread may call it.

    A session that the program has already built is used unchanged.

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
        self._running: _Running | None = None
        self._is_replaced = False  # a session has ended, and steps wait for the next

    def use(self, settings: SparkSettings | None) -> None:
        """Set the settings of the next session that is built; None: those of the environment."""
        self._settings = settings

    @property
    def is_alive(self) -> bool:
        """Whether this holds a session, and it replies."""
        running = self._running
        return running is not None and is_alive(running.spark)

    @property
    def is_built(self) -> bool:
        """Whether this process has a session, built here or by the program itself."""
        if self._running is not None or self._is_replaced or _OF_SUBMIT in os.environ:
            return True
        return "pyspark" in sys.modules and _jvm_of_program() is not None

    def get(self) -> SparkSession:
        """Return the session; first build one if there is none, or if its JVM or context has ended.

        Steps that still use a dead session fail; only the first caller builds the new one.

        Raises:
            JavaMissing: No Java of version 17 or newer.
            ConfigurationError: PySpark is not installed, or a setting is wrong.
        """
        with self._lock:
            if self._running is not None and not is_alive(self._running.spark):
                logger.warning("the Spark session has ended; building a new one")
                self._is_replaced = True
                self._end()
            if self._running is None:
                try:
                    self._running = _build(self._settings or SparkSettings.from_environment())
                finally:
                    self._is_replaced = False
                atexit.register(self.stop)
            return self._running.spark

    def stop(self) -> None:
        """End the session and its JVM. Nothing is left running. Repeatable."""
        with self._lock:
            if self._running is not None:
                self._end()
                atexit.unregister(self.stop)

    def after_fork(self) -> None:
        """Leave the session to the parent; a child builds its own when it needs one."""
        self._lock = threading.Lock()
        running, self._running = self._running, None
        if running is not None:
            atexit.unregister(self.stop)
            # Py4J reports every collected object to the JVM, over a connection that belongs to the parent.
            _OF_PARENTS.extend([running, running.spark.sparkContext])
            _forget_session()

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            _end(running)


warm_session: Final = WarmSession()
_OF_PARENTS: Final[list[object]] = []
os.register_at_fork(after_in_child=warm_session.after_fork)


def is_alive(spark: SparkSession) -> bool:
    """Whether the session's JVM replies and its context runs: one call to the JVM."""
    try:
        return spark.sparkContext.defaultParallelism > 0  # a context that has ended raises
    except Exception:  # noqa: BLE001  py4j raises half a dozen unrelated classes for a dead JVM
        return False


def _build(settings: SparkSettings) -> _Running:
    require_java()
    require_master(settings.master)
    for name, value in settings.environment().items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        # PySpark warns about the version of pandas when it is first used, even if no step uses pandas.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            with importing():
                import psutil  # noqa: F401, PLC0415  of the same extra
                from pyspark import SparkConf, SparkContext
                from pyspark.sql import SparkSession
        except ImportError as exc:
            missing = (exc.name or "pyspark").partition(".")[0]
            raise ConfigurationError(
                f"Spark steps need {'PySpark' if missing == 'pyspark' else missing}: "
                "pip install 'glidemq-orchestrate[spark]'"
            ) from exc
        given = settings.spark_conf()
        gateway: Any = None
        scratch: Scratch | None = None
        jvm: subprocess.Popen[bytes] | psutil.Process | None = _jvm_of_program()
        try:
            if jvm is None and _OF_SUBMIT not in os.environ:
                _forget_session()  # a session of the program whose JVM has ended
                scratch = Scratch(settings.of_users)
                gateway = _gateway({**settings.of_file, **given}, scratch)
                jvm = gateway.proc
            if jvm is not None:
                lifeline.watch(jvm.pid)
            conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
            if gateway is not None:
                SparkContext(conf=conf, gateway=gateway)
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
            offer()
        except BaseException as exc:
            try:
                why = _refused(exc)
            finally:
                _end_jvm(jvm, gateway, scratch)
            if why is not None:
                raise why from exc
            raise
    logger.info("Spark session ready", extra={"action": "spark_started", "master": settings.master})
    return _Running(spark, jvm, gateway, scratch)


def _gateway(conf: Mapping[str, str], scratch: Scratch) -> Any:
    """A JVM, and the connection to it.

    Args:
        conf: All settings; none of them is on its command line.
        scratch: Holds its temporary files, and a file with the settings.

    Raises:
        ConfigurationError: Spark is missing, or the JVM ended when it started, twice: it may have been killed
            the first time.
    """
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    file = shlex.quote(str(write_properties(conf, scratch.folder)))
    arguments = f"--properties-file {file} {os.environ.get(_ARGUMENTS, 'pyspark-shell')}"
    for _ in range(2):
        try:
            with patched({**lifeline.mark, **scratch.environment(), _ARGUMENTS: arguments}):
                return launch_gateway()  # type: ignore[no-untyped-call]
        except OSError as exc:
            raise ConfigurationError(
                f"Spark cannot be started: {exc}. Fix: set SPARK_HOME to a folder with Spark, or unset it"
            ) from exc
        except PySparkException:
            continue
    raise ConfigurationError(
        "Spark cannot be started: its JVM ends when it starts; its output shows why. Fix: check "
        f"{CONF_VARIABLE}, {MASTER_VARIABLE} and the memory of this machine"
    )


def _refused(exc: BaseException) -> ConfigurationError | None:
    """An error of Spark or its JVM while a session is built; None for any other error."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  of an extra
    from pyspark.errors import PySparkException

    if isinstance(exc, Py4JJavaError | PySparkException):
        return ConfigurationError(f"Spark cannot be started: {cause_and_fix(str(exc))}")
    return None


def _jvm_of_program() -> psutil.Process | None:
    """The JVM of a session that the program has built itself; None if it has built none."""
    import psutil  # noqa: PLC0415  of an extra

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if _SUBMIT in child.cmdline():
                return child
    return None


def _end(running: _Running) -> None:
    """Stop the context, then the JVM, and make PySpark forget both, even if they have died."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # PySpark warns about a JVM that has ended, which is cleaned up here
        running.spark.stop()
    _end_jvm(running.jvm, running.gateway, running.scratch)


def _end_jvm(
    jvm: subprocess.Popen[bytes] | psutil.Process | None, gateway: Any, scratch: Scratch | None
) -> None:
    """End the JVM with everything that it has started, and wait; kill it if it hangs."""
    import psutil  # noqa: PLC0415  of an extra

    with suppress(Exception):  # py4j raises half a dozen unrelated classes
        gateway.shutdown()
    _forget_session()
    if jvm is not None:
        if isinstance(jvm, subprocess.Popen) and jvm.stdin is not None:
            jvm.stdin.close()
        with suppress(psutil.NoSuchProcess):
            jvm.terminate()
            try:
                jvm.wait(timeout=JVM_EXIT_SECONDS)
            except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
                logger.warning("the Spark JVM did not end within %s s; killing it", JVM_EXIT_SECONDS)
                jvm.kill()
                jvm.wait()
        lifeline.forget(jvm.pid)
    if scratch is not None:
        scratch.close()


def _forget_session() -> None:
    """Make PySpark forget its JVM, which the next session would try to reach: there is no public way."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
