"""Session hosts: real processes with a real session each, and the steps that run in them."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from glidemq_orchestrate.spark.hosts.pool import Hosts
from glidemq_orchestrate.spark.setup.request import SessionRequest
from tests.spark.conftest import MakeRun, Run

STEPS = """
    import collections, decimal, logging, multiprocessing, os, sys, threading, time
    from datetime import timedelta
    from pathlib import Path
    from glidemq_orchestrate import FlowNode, RetryLater
    from glidemq_orchestrate.spark import publish

    def about(spark, ctx, *, rows=3):
        conf = spark.sparkContext.getConf()
        return {
            "pid": os.getpid(),
            "rows": spark.range(rows).count(),
            "memory": conf.get("spark.driver.memory"),
            "temporary": spark._jvm.java.lang.System.getProperty("java.io.tmpdir"),
            "description": spark.sparkContext.getLocalProperty("spark.job.description"),
            "told": [
                tell(f"spark.glidemq.{name}")
                for tell in (lambda name: spark.conf.get(name, None), spark.sparkContext.getLocalProperty)
                for name in ("queue", "job", "node", "user")
            ],
        }

    def counts_jobs(spark, ctx, *, url):
        return spark.read.format("GlideMQ").options(url=url, table="jobs").load().count()

    def talks(spark, ctx):
        ctx.log("by hand")
        logging.getLogger("mine").warning("by %s", "logging", extra={"action": "tried", "odd": object()})
        logging.getLogger("mine").debug("not told")
        ctx.progress({"part": 1})
        ctx.check_owner()
        ctx.flow.add_nodes([FlowNode("more", queue="spark", job="other")], before=["last"])
        return ctx.inputs

    def reads_an_array(spark, ctx):
        results = ctx.flow.array_results("parts", 1, 3)
        try:
            ctx.flow.array_results("none")
        except Exception as exc:
            return [spark.createDataFrame(list(results.values())).groupBy().sum("rows").first()[0], str(exc)]

    def makes_an_array(spark, ctx):
        rows = spark.range(3).selectExpr("concat('part-', id) AS path").collect()
        items = [row.path for row in rows]
        ctx.flow.map_over(FlowNode("clean", queue="etl"), items, array=True, before=["report"])

    def sums(spark, ctx, *, parts):
        return spark.createDataFrame(parts).groupBy().sum("rows").first()[0]

    def checks(spark, ctx):
        try:
            ctx.check_owner()
        except Exception as exc:
            return type(exc).__name__

    def later(spark, ctx):
        raise RetryLater(timedelta(seconds=7), "not yet", counts=False)

    def leaves(spark, ctx, *, how):
        how == "os" and os._exit(3)
        sys.exit(4)

    def waits(spark, ctx, *, go):
        Path(go + ".begun").touch()
        while not Path(go).exists():
            time.sleep(0.05)
        return spark.range(5).count()

    def slow(spark, ctx, *, go):
        def wait(_):
            Path(go + ".begun").touch()
            time.sleep(60)
        spark.sparkContext.parallelize([1]).foreach(wait)

    def caches(spark, ctx, *, name):
        frame = spark.range(3).selectExpr(f"'{name}' as a").cache()
        frame.count()
        frame.createOrReplaceGlobalTempView(name)
        spark.sql(f"create global temporary view {name}2 as select 1 as a")
        spark.sql(f"cache table global_temp.{name}2")
        spark.sparkContext.parallelize([1]).cache().count()
        return left(spark, ctx)

    class Odd(str):
        def __new__(cls, one, two):
            return super().__new__(cls, one + two)

    def odd(spark, ctx, *, what):
        if what == "result":
            return collections.defaultdict(lambda: 0, a=1)
        if what == "progress":
            ctx.progress({"part": Odd("a", "b")})
            ctx.log(Odd("c", "d"))
            logging.getLogger("mine").warning(Odd("e", "f"), extra={"more": Odd("g", "h")})
        if what == "log":
            logging.getLogger("mine").warning("done", 3)
        if what == "error":
            raise Broken()
        return what

    class Broken(Exception):
        def __reduce__(self):
            raise RuntimeError("not to be pickled")

    def forks(spark, ctx):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            child = pool.apply(_logs)
        ctx.check_owner()
        return child

    def _logs():
        logging.getLogger("mine").warning("in a forked process")
        return os.getpid()

    def leaves_a_child(spark, ctx):
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        os.system("sleep 60 &")
        os._exit(3)

    def adds(spark, ctx, *, path):
        spark.sparkContext.addPyFile(path)
        os.environ["HOST_STEPS"] = path
        return os.environ["HOST_STEPS"]

    def rounds(spark, ctx):
        third = str(decimal.Decimal(1) / 3)
        decimal.getcontext().prec = 3
        return third

    def sets_up_logging(spark, ctx, *, go=None):
        if go:
            Path(go + ".begun").touch()
            while not Path(go).exists():
                time.sleep(0.05)
            logging.getLogger("mine").warning("as before")
        else:
            logging.basicConfig(level=logging.WARNING, force=True, handlers=[logging.NullHandler()])

    def left_in_the_process(spark, ctx):
        return os.environ.get("HOST_STEPS")

    def left(spark, ctx):
        storage = spark.sparkContext._jsc.sc().getRDDStorageInfo()
        views = [row.tableName for row in spark.sql("show tables in global_temp").collect()]
        return {"cached": len(storage), "views": sorted(views)}
"""


@pytest.fixture(scope="module", autouse=True)
def _steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("package")
    (folder / "host_steps.py").write_text(textwrap.dedent(STEPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        yield


@contextmanager
def pool_of(**limits: Any) -> Iterator[Hosts]:
    hosts = Hosts()
    try:
        hosts.start()
        hosts._limits = replace(hosts._limits, **limits)
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture(scope="module")
def shared(_spark_environment: None) -> Iterator[Hosts]:
    """For tests that leave it as it was."""
    with pool_of() as hosts:
        yield hosts


@pytest.fixture
def make(make_run: MakeRun) -> Callable[..., Run]:
    def made(step: str, *, node: str = "step", data: Any = None, inputs: Any = None, **arguments: Any) -> Run:
        payload = {"callable": f"host_steps:{step}", "arguments": arguments, **(data or {})}
        return make_run(payload, inputs, node=node)

    return made


Make = Callable[..., Run]


def run(hosts: Hosts, one: Run, **how: Any) -> Any:
    return json.loads(hosts.run(one.ctx, "step", SessionRequest.of(one.ctx.data, os.environ), **how).result)
