"""The settings of a Spark session, from the environment of the worker.

* ``GLIDEMQ_SPARK_MASTER``: a Spark master URL; by default that of ``spark-defaults.conf``, else ``local[*]``
  (all cores of this machine). With ``sc://host:15002`` steps run on a Spark Connect server, without a JVM
  here (see ``sessions.connect``).
* ``GLIDEMQ_SPARK_CONF``: a JSON object of further Spark settings. They override those of
  ``spark-defaults.conf``, which override the defaults of this module.
* ``GLIDEMQ_SPARK_EXECUTOR_TIMEOUT``: a step fails when its Spark jobs wait and no executor has run anything
  of the session for this long (seconds, or ``5m``), 300 by default.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, setting_duration
from glidemq_orchestrate.spark.setup.master import spark_home

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
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SparkSettings:
        """Read the master and the settings; an empty variable counts as unset.

        Raises:
            ConfigurationError: The conf is not a JSON object of plain values, or ``spark-defaults.conf``
                cannot be read.
        """
        environment = os.environ if environment is None else environment
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

        What ``spark-defaults.conf`` sets stays, except the master and the place of the driver: this machine.
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


def settings_of_file(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``, which Spark itself reads; empty without such a file.

    The file is in ``SPARK_CONF_DIR``, or in ``conf`` of ``SPARK_HOME``, by default PySpark's own folder, as
    for ``spark-submit``.
    """
    environment = os.environ if environment is None else environment
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


def patience(environment: Mapping[str, str] | None = None) -> timedelta:
    """How long a step may wait for executors.

    Raises:
        ConfigurationError: The variable is not a duration.
    """
    text = (os.environ if environment is None else environment).get(PATIENCE_VARIABLE) or PATIENCE
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
