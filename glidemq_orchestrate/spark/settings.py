"""The settings of a Spark session, as the environment of the worker has them.

* ``GLIDEMQ_SPARK_MASTER``: a Spark master URL; when unset that of ``spark-defaults.conf``, else ``local[*]``
  (all cores of this machine). With ``sc://host:15002`` steps run on a Spark Connect server, without a JVM
  here (see the module ``connect``).
* ``GLIDEMQ_SPARK_CONF``: a JSON object of additional Spark settings, which override those of
  ``spark-defaults.conf``; and these the ones chosen here.
* ``GLIDEMQ_SPARK_EXECUTOR_TIMEOUT``: a step fails when its Spark jobs wait and no executor has run anything
  of the session for so many seconds, 300 by default.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.cluster import settings_of_file

MASTER_VARIABLE: Final = "GLIDEMQ_SPARK_MASTER"
CONF_VARIABLE: Final = "GLIDEMQ_SPARK_CONF"
PATIENCE_VARIABLE: Final = "GLIDEMQ_SPARK_EXECUTOR_TIMEOUT"
PATIENCE_SECONDS: Final = 300.0
REDACTED: Final = (
    r"(?i)secret|password|passphrase|token|(access|account|api|private)[._-]?key|credential|\.sas\."
    r"|://[^/@\s]+:[^/@\s]+@"
)
"""What Spark's pages do not show: its own pattern, keys of Azure and others, and passwords in URIs."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of a session.

    Attributes:
        master: Spark master URL.
        conf: Spark settings that override the defaults of ``spark_conf``.
        of_file: Those of ``spark-defaults.conf``, which Spark reads by itself; they override the defaults.
        scope: Of the ids of jobs, for sessions that are named after them.
        server: Where the worker's jobs are, as variables for the process of the session: the defaults of the
            data source ``glidemq``.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    of_file: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""
    server: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SparkSettings:
        """Read the two variables in the module's docstring; an empty one counts as unset.

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
        """All that users have set, in the file and in ``conf``."""
        return {**self.of_file, **self.conf}

    @property
    def is_connect(self) -> bool:
        """Whether the master is a Spark Connect server."""
        return self.master.startswith("sc://")

    def environment(self) -> dict[str, str]:
        """Variables for Spark, where nobody has set them: on a local master, with this Python."""
        if not self.master.startswith("local"):
            return {}
        return {
            "SPARK_LOCAL_IP": "127.0.0.1",  # works when the host name does not resolve
            "PYSPARK_PYTHON": sys.executable,  # else another Python of PATH runs functions
        }

    def spark_conf(self) -> dict[str, str]:
        """The Spark settings to give: UTC, FAIR scheduling, plain timestamps; ``conf`` overrides them.

        What ``spark-defaults.conf`` sets is left to it, but for the master and where the driver runs: here.
        """
        settings = {
            "spark.app.name": "glidemq-worker",
            "spark.scheduler.mode": "FAIR",
            "spark.ui.port": "0",  # a free one: there may be several sessions
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.files.overwrite": "true",  # of one step that is over, on the executors
            "spark.python.task.killTimeout": "100ms",  # of a task that was cancelled, in place of 2 s
            "spark.sql.shuffleExchange.maxThreadThreshold": "128",  # each keeps the session it began in,
            "spark.sql.resultQueryStage.maxThreadThreshold": "128",  # a quarter of a megabyte; else 1,024
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.redaction.regex": REDACTED,
            "spark.sql.maxMetadataStringLength": "10000",  # else plans name one of the folders that are read
        }
        if self.master.startswith("local"):
            settings |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(max(4, os.cpu_count() or 1)),
            }
        if self.master.startswith("spark://"):  # else the first session would keep all cores for ever
            settings |= {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.executorIdleTimeout": "30s",
            }
        own = {name: value for name, value in settings.items() if name not in self.of_file}
        return {**own, **self.conf, "spark.master": self.master, "spark.submit.deployMode": "client"}


def patience(environment: Mapping[str, str] | None = None) -> float:
    """For how many seconds a step may wait for executors.

    Raises:
        ConfigurationError: The variable holds no number of seconds.
    """
    text = (os.environ if environment is None else environment).get(PATIENCE_VARIABLE) or PATIENCE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"{PATIENCE_VARIABLE} must be a number of seconds")
    return seconds


def setting(value: object) -> str:
    """A value of JSON as Spark writes it."""
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
