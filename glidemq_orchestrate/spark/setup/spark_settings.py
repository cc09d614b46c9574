"""The settings of Spark sessions and their hosts, from the environment of the worker; checks the master.

* ``GLIDEMQ_SPARK_MASTER``: a Spark master URL; by default that of ``spark-defaults.conf``, else ``local[*]``
  (all cores of this machine). With ``sc://host:15002`` steps run on a Spark Connect server, without a JVM
  here (see ``sessions.connect``).
* ``GLIDEMQ_SPARK_CONF``: a JSON object of further Spark settings. They override those of
  ``spark-defaults.conf``, which override the defaults of this module.
* ``GLIDEMQ_SPARK_EXECUTOR_TIMEOUT``: a step fails when its Spark jobs wait and no executor has run anything
  of the session for this long (seconds, or ``5m``), 300 by default.
* ``GLIDEMQ_SPARK_SESSIONS``: sessions at a time, including the shared one; 2 by default. A replacement is
  started before the old session ends, and does not count.
* ``GLIDEMQ_SPARK_SESSION_STEPS``: a session is replaced after this many steps; unlimited by default.
* ``GLIDEMQ_SPARK_SESSION_AGE``: a session is replaced at this age (seconds, or ``12h``); a day by default.
* ``GLIDEMQ_SPARK_SESSION_MEMORY``: a session is replaced when its processes use this much memory (``6g``);
  unlimited by default.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, setting_duration

MASTER_VARIABLE: Final = "GLIDEMQ_SPARK_MASTER"
CONF_VARIABLE: Final = "GLIDEMQ_SPARK_CONF"
PATIENCE_VARIABLE: Final = "GLIDEMQ_SPARK_EXECUTOR_TIMEOUT"
PATIENCE: Final = timedelta(minutes=5)
_LINE: Final = re.compile(r"\s*([^#!\s=:]+)\s*[=:\s]\s*(.*?)\s*")


REDACTED: Final = (
    r"(?i)secret|password|passphrase|token|(access|account|api|private)[._-]?key|credential|\.sas\."
    r"|://[^/@\s]+:[^/@\s]+@"
)
"""What Spark's pages hide: its own pattern, keys of Azure and others, and passwords in URIs."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of a session.

    Attributes:
        master: Spark master URL.
        conf: Spark settings that override the defaults of ``spark_conf``.
        of_file: The settings of ``spark-defaults.conf``, which Spark itself reads; they override the
            defaults.
        scope: The server of the jobs, for sessions whose ids are made from job ids.
        server: Environment variables with the server of the worker's jobs, for the process of the session:
            the defaults of the data source ``glidemq``.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    of_file: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""
    server: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SparkSettings:
        """Read the master and the settings; an empty variable counts as unset.

        Raises:
            ConfigurationError: The conf is not a JSON object of plain values, or ``spark-defaults.conf``
                cannot be read.
        """
        of_file = settings_of_file(environment)
        master = environment.get(MASTER_VARIABLE) or of_file.get("spark.master") or cls().master
        return cls(master, _read_conf(environment.get(CONF_VARIABLE) or "{}"), of_file)

    @property
    def of_users(self) -> dict[str, str]:
        """Everything that users have set, in the file and in ``conf``."""
        return {**self.of_file, **self.conf}

    @property
    def is_connect(self) -> bool:
        """Whether the master is a Spark Connect server."""
        return self.master.startswith("sc://")

    def environment(self) -> dict[str, str]:
        """Environment variables for Spark on a local master, to be set where they are unset."""
        if not self.master.startswith("local"):
            return {}
        return {
            "SPARK_LOCAL_IP": "127.0.0.1",  # works when the host name does not resolve
            "PYSPARK_PYTHON": sys.executable,  # else the first Python in PATH runs functions
        }

    def spark_conf(self) -> dict[str, str]:
        """The Spark settings to apply: UTC, FAIR scheduling, plain timestamps; ``conf`` overrides them.

        The settings of ``spark-defaults.conf`` stay, except the master and the deploy mode: the driver runs
        on this machine.
        """
        settings = {
            "spark.app.name": "glidemq-worker",
            "spark.scheduler.mode": "FAIR",
            "spark.ui.port": "0",  # a free port: there may be several sessions
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.files.overwrite": "true",  # files of earlier steps, on the executors
            "spark.python.task.killTimeout": "100ms",  # of a cancelled task; the default is 2 s
            "spark.sql.shuffleExchange.maxThreadThreshold": "128",  # each thread keeps the session that it
            "spark.sql.resultQueryStage.maxThreadThreshold": "128",  # began in, 256 KiB; the default is 1,024
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.redaction.regex": REDACTED,
            "spark.sql.maxMetadataStringLength": "10000",  # else plans name only one of the folders read
        }
        if self.master.startswith("local"):
            settings |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(max(4, os.cpu_count() or 1)),
            }
        if self.master.startswith("spark://"):  # else the first session would keep all cores
            settings |= {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.executorIdleTimeout": "30s",
            }
        own = {name: value for name, value in settings.items() if name not in self.of_file}
        return {**own, **self.conf, "spark.master": self.master, "spark.submit.deployMode": "client"}


def settings_of_file(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``, which Spark itself reads; empty without such a file.

    The file is in ``SPARK_CONF_DIR``, or in ``conf`` of ``SPARK_HOME``, by default PySpark's own folder, as
    for ``spark-submit``.
    """
    folder = environment.get("SPARK_CONF_DIR")
    if not folder:
        home = spark_home(environment)
        folder = str(Path(home, "conf")) if home else None
    file = Path(folder, "spark-defaults.conf") if folder else None
    try:
        text = file.read_text(encoding="utf-8", errors="replace") if file else ""
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc.strerror}") from exc
    found = [match for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    return {match[1]: match[2] for match in found if match[1].startswith("spark.")}


def patience(environment: Mapping[str, str] = os.environ) -> timedelta:
    """How long a step may wait for executors.

    Raises:
        ConfigurationError: The variable is not a duration.
    """
    text = environment.get(PATIENCE_VARIABLE) or PATIENCE
    return setting_duration(PATIENCE_VARIABLE, text, min_=MILLISECOND)


def setting(value: object) -> str:
    """A JSON value in Spark's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    return {key: setting(value) for key, value in conf.items()}


logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 1.0
CONNECT_PORT: Final = 15002
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_OTHERS: Final = re.compile(r"local|local\[.+\]|local-cluster\[.+\]|yarn|yarn-client|k8s://.+")


def require_master(master: str, patience: float = WAIT_SECONDS) -> None:
    """Wait until the master of a standalone cluster, or a Spark Connect server, accepts connections.

    Other masters are not checked. Spark itself would wait minutes for a missing one, with a poor message.

    Args:
        master: The URL; ``spark://one:7077,two:7077`` has several, of which one suffices. The part of a
            server's URL after ``;`` may be secret, and never appears in a message.
        patience: How many seconds to wait.

    Raises:
        ConfigurationError: None replies, or the URL is not that of a master.
    """
    if master.startswith(_CONNECT):
        master = master.partition(";")[0].rstrip("/")
        place = master.removeprefix(_CONNECT)
        parts = [place if ":" in place else f"{place}:{CONNECT_PORT}"]
    elif master.startswith(_STANDALONE):
        parts = master.removeprefix(_STANDALONE).split(",")
    elif _OTHERS.fullmatch(master):
        return
    else:
        raise ConfigurationError(
            f"{master} is not a Spark master: it must be local[*], spark://HOST:PORT, yarn, "
            "k8s://https://HOST:PORT or sc://HOST:PORT"
        )
    places = [_place(part, master) for part in parts]
    until, has_warned = time.monotonic() + patience, False
    while not any(_answers(host, port) for host, port in places):
        if time.monotonic() >= until:
            raise ConfigurationError(
                f"no Spark master replies at {master}. Fix: start it, or change GLIDEMQ_SPARK_MASTER"
            )
        if not has_warned:
            logger.warning("no Spark master replies at %s; waiting up to %g s for it", master, patience)
            has_warned = True
        time.sleep(PAUSE_SECONDS)


def _place(part: str, master: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{master} is not a Spark master: it must be spark://HOST:PORT or sc://HOST:PORT"
        )
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def spark_home(environment: Mapping[str, str] = os.environ) -> str | None:
    """The folder of Spark: ``SPARK_HOME``, else that of PySpark; None without both."""
    spec = None if environment.get("SPARK_HOME") else importlib.util.find_spec("pyspark")
    return environment.get("SPARK_HOME") or (str(Path(spec.origin).parent) if spec and spec.origin else None)


PREFIX: Final = "GLIDEMQ_SPARK_SESSION"
_SIZE: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """See the module. Memory is in bytes."""

    sessions: int = 2
    steps: float = math.inf
    age: Duration = _DAY
    memory: float = math.inf

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the limits; an empty variable counts as unset.

        Raises:
            ConfigurationError: A variable is malformed.
        """
        return cls(
            int(_count(environment, "S", cls().sessions)),
            _count(environment, "_STEPS", math.inf),
            _age(environment, "_AGE"),
            _size(environment, "_MEMORY"),
        )


def _count(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{PREFIX}{name} must be a whole number, 1 or more")
    return int(text)


def _age(given: Mapping[str, str], name: str) -> timedelta:
    text = given.get(PREFIX + name)
    return setting_duration(PREFIX + name, text, min_=timedelta(seconds=1)) if text else _DAY


def _size(given: Mapping[str, str], name: str) -> float:
    text = given.get(PREFIX + name)
    if not text:
        return math.inf
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{PREFIX}{name} must be a size such as 6g or 800m")
    size: int = int(found[1]) * 1024 ** ("kmgt".index(found[2].lower()) + 1)
    return size
