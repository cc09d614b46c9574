"""The JVMs of tests start quickly. ``python -m tests.java`` archives the classes of a Spark session."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"

# The JVMs of tests live for seconds: what the second compiler of Java, a collector with threads of its own
# and the check of all code that is loaded cost, they never get back. It is a quarter of their processor time.
# A JVM that cannot use the archive starts without it, but would say so on its stdout, which Spark reads.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -Xlog:disable"
)


def start_quickly() -> None:
    """Let the JVMs that are started from now on do so; with the archive, they need a third less to start."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else ""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK + archive)


def _archive_classes() -> None:
    """Run what most tests do in a session; its JVM writes the archive when it ends."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  only when used

    os.environ["JAVA_TOOL_OPTIONS"] = QUICK
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        options = f"-XX:ArchiveClassesAtExit={made}"
        builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
        table = f"{folder}/table"
        frame = spark.createDataFrame([(n, str(n), n * 1.5) for n in range(20)], "a int, b string, c double")
        frame.join(frame.select("a", frame.c.alias("d")), "a").write.parquet(table)
        spark.read.parquet(table).groupBy("b").agg({"a": "sum", "c": "avg"}).orderBy("b").collect()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with it
        gateway.proc.wait(120)
        made.replace(ARCHIVE)


if __name__ == "__main__":
    _archive_classes()
