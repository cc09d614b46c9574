"""The steps that publish tables."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

STEPS = """
    import time
    from pathlib import Path
    from glidemq_orchestrate.spark import publish, publish_files, published_path, read_published

    def table(spark, ctx, *, rows, folder):
        frame = spark.range(rows).selectExpr("id", "cast(id % 2 as string) as half")
        return {"rows": rows, **publish(ctx, folder, frame)}

    def days(spark, ctx, *, day, rows, folder):
        frame = spark.range(rows).selectExpr("id", f"'{day}' as day")
        return publish(ctx, folder, frame, partition_by=["day"], replace="partitions")

    def waits(spark, ctx, *, rows, folder, go):
        if ctx.attempt == 1 and not Path(go + ".begun").exists():
            Path(go + ".begun").touch()
            while not Path(go).exists():
                time.sleep(0.05)
        return publish(ctx, folder, spark.range(rows))

    def counted(spark, ctx, *, node):
        return read_published(spark, ctx.inputs[node]).count()

    def looks_away(spark, ctx):
        return 0

    def newest(spark, ctx, *, folder):
        return read_published(spark, folder).count()

    def overwrites(spark, ctx, *, folder):
        def slowly(rows):
            for row in rows:
                time.sleep(6 if number == 1 else 0)
                yield row
        number = ctx.attempt
        some = spark.sparkContext.parallelize([(n,) for n in range(8)], 2)
        frame = some.mapPartitions(slowly).toDF("n int")
        frame.write.mode("overwrite").parquet(folder)
        return ctx.attempt

    def report(spark, ctx, *, folder):
        return publish_files(ctx, folder, lambda where: (where / "report.txt").write_text("done"))
"""


@pytest.fixture(scope="module", autouse=True)
def _steps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("package")
    (folder / "published_steps.py").write_text(textwrap.dedent(STEPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        yield
