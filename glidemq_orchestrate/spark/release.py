"""Which PySpark is here."""

from __future__ import annotations


def is_spark_3() -> bool:
    """Whether it is of release 3: some of its methods take less."""
    from pyspark import __version__

    return __version__.startswith("3.")
