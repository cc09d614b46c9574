"""What the Spark jobs of a step took (bytes and time), and which data they have read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.plans import is_short, lineage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_STAGES: Final = 200
"""Of the last so many stages of a step; Spark itself keeps a thousand of a session."""
MAX_QUERIES: Final = 100
"""Of the last so many queries of a session, those of the step are looked at."""
HEAR_MS: Final = 1_000
_SUMS: Final = {
    "input_bytes": "inputBytes",
    "output_bytes": "outputBytes",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "spilled_bytes": "diskBytesSpilled",
    "executor_ms": "executorRunTime",
}


def facts_of(spark: SparkSession, group: str, since: float, known: Iterable[int] = ()) -> dict[str, Any]:
    """The facts of the jobs in a group; an empty object if there is none, or Spark does not tell.

    Args:
        spark: A session of its context.
        group: The group.
        since: A time of this machine before the first of its jobs, in seconds since 1970.
        known: Jobs of it that were seen; Spark may have forgotten them.

    Returns:
        ``spark_jobs``, their ids in Spark; ``input_bytes``, ``output_bytes``, ``shuffle_read_bytes``,
        ``shuffle_write_bytes``, ``spilled_bytes`` (on disk) and ``executor_ms`` (time of all tasks) of the
        last ``MAX_STAGES`` stages. Retried tasks count each time. ``lineage``, with ``inputs`` and
        ``outputs``, where its plans name any (see ``plans``).
    """
    context = spark.sparkContext
    tracker = context.statusTracker()
    jobs = sorted({*known, *tracker.getJobIdsForGroup(group)})
    if not jobs:
        return {}
    infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
    stages = sorted({stage for info in infos for stage in info.stageIds})[-MAX_STAGES:]
    sums = dict.fromkeys(_SUMS, 0)
    jvm: Any = context
    scala = jvm._jsc.sc()  # noqa: SLF001  no public way; the pages of Spark's UI read it
    with suppress(Exception):  # it did not hear of all in time
        scala.listenerBus().waitUntilEmpty(HEAR_MS)
    store = scala.statusStore()
    for stage in stages:
        with suppress(Exception):  # Spark has forgotten it, or skipped it
            data = store.lastStageAttempt(stage)
            read = {name: int(getattr(data, method)()) for name, method in _SUMS.items()}
            sums = {name: sums[name] + read[name] for name in sums}
    lineage = lineage_of(reversed([*_plans(spark, set(jobs), int(since * 1000))]))
    return {"spark_jobs": jobs, **sums, **({"lineage": lineage} if lineage else {})}


def _plans(spark: SparkSession, jobs: set[int], since_ms: int) -> Iterator[str]:
    """The plans of the queries that have run these jobs, the newest first; each call of these takes time."""
    with suppress(Exception):  # of what Spark promises to nobody
        session: Any = spark
        store = session._jsparkSession.sharedState().statusStore()  # noqa: SLF001  as for the stages
        first = max(0, store.executionsCount() - MAX_QUERIES)
        queries = store.executionsList(first, MAX_QUERIES)
        for number in reversed(range(queries.size())):
            query = queries.apply(number)
            if query.submissionTime() < since_ms:
                return
            ran = str(query.jobs().keys().mkString(","))
            if not jobs.isdisjoint(int(job) for job in ran.split(",") if job):
                yield (plan := str(query.physicalPlanDescription()))
                if is_short(plan):
                    nodes = store.planGraph(query.executionId()).allNodes()
                    yield from (str(nodes.apply(at).desc()) for at in range(nodes.size()))
