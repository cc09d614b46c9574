"""What the Spark jobs of a step took (bytes and time), and which data they have read and written.

The data come from the plans of its queries, as the SQL page of Spark's UI shows them: a plan names the
folders of each scan and of each write. Of a scan of several folders it names the first; the nodes of the
graph on that page name all, up to ``spark.sql.maxMetadataStringLength`` characters. What is read and written
in other ways (JDBC, RDDs) is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.wire.codec import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_DATASETS: Final = 100
"""Up to this many data sets of each side are reported."""
_SCAN: Final = re.compile(r"^Location: \w+(?: ?\(\d+ paths\))? ?\[(.+)\]$", re.MULTILINE)
_NODE: Final = re.compile(r", Location: \w+\(\d+ paths\)\[(.+?)(\]|\.\.\.), PartitionFilters: ")
_WRITE: Final = re.compile(
    r"^\(\d+\) Execute InsertIntoHadoopFsRelationCommand\n(?:.+\n)*?Arguments: (.+?), (?:true|false), ",
    re.MULTILINE,
)
_NEXT: Final = re.compile(r", (?=\.\.\. \d+ entries$|[a-z][\w+.-]*:/)")
_MORE: Final = re.compile(r"\.\.\. \d+ entries")
_ATTEMPT: Final = re.compile(r"/attempts/\d{1,16}-[0-9a-f]{12}(?:/.*)?$")
_SECRET: Final = re.compile(r"(?<=://)[^/@]*:[^/@]*@")  # a key and its secret in a URI
_PART: Final = re.compile(r"/part-\d+-[^/]*$")


def is_short(plan: str) -> bool:
    """Whether a plan omits folders of a scan."""
    return any(_MORE.search(found) for found in _SCAN.findall(plan))


def lineage_of(plans: Iterable[str]) -> dict[str, Json]:
    """The inputs and outputs of plans, each once, in the form of the module ``lineage``.

    Published data are named by their location, not by the folder of the attempt.

    Args:
        plans: Their texts, and those of nodes of their graphs.
    """
    inputs, outputs = dict[str, None](), dict[str, None]()
    for plan in plans:
        for paths in (*_of_nodes(plan), *map(_NEXT.split, _SCAN.findall(plan))):
            inputs.update((_dataset(path), None) for path in paths if not _MORE.fullmatch(path))
        outputs.update((_dataset(path), None) for path in _WRITE.findall(plan))
    sides = {"inputs": list(inputs)[:MAX_DATASETS], "outputs": list(outputs)[:MAX_DATASETS]}
    return {side: [*paths] for side, paths in sides.items() if paths}


def _of_nodes(plan: str) -> Iterator[list[str]]:
    """The paths of the scans in the text of a node; Spark cuts a long list somewhere."""
    for found, end in _NODE.findall(plan):
        paths = _NEXT.split(found)
        yield paths if end == "]" else paths[:-1]


def _dataset(path: str) -> str:
    path = _SECRET.sub("", re.sub(r"^file:/+", "/", path))
    return _ATTEMPT.sub("", _PART.sub("", path)).rstrip("/") or "/"


MAX_STAGES: Final = 200
"""How many of the last stages of a step count; Spark itself keeps a thousand of a session."""
MAX_QUERIES: Final = 100
"""How many of the last queries of a session are searched for those of the step."""
LISTENER_MS: Final = 1_000
_SUMS: Final = {
    "input_bytes": "inputBytes",
    "output_bytes": "outputBytes",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "spilled_bytes": "diskBytesSpilled",
    "executor_ms": "executorRunTime",
}


def facts_of(spark: SparkSession, group: str, since: float, known: Iterable[int] = ()) -> dict[str, Any]:
    """The facts of the jobs in a group; an empty object if there are none, or Spark does not have them.

    Args:
        spark: A session of its context.
        group: The group.
        since: A time of this machine before the first of its jobs, in seconds since 1970.
        known: Jobs of the group that were seen before; Spark may have dropped them.

    Returns:
        ``spark_jobs``, their ids in Spark; ``input_bytes``, ``output_bytes``, ``shuffle_read_bytes``,
        ``shuffle_write_bytes``, ``spilled_bytes`` (on disk) and ``executor_ms`` (time of all tasks) of the
        last ``MAX_STAGES`` stages. Retried tasks count each time. ``lineage``, with ``inputs`` and
        ``outputs``, if its plans name any (see ``lineage_of``).
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
    with suppress(Exception):  # it did not process all events in time
        scala.listenerBus().waitUntilEmpty(LISTENER_MS)
    store = scala.statusStore()
    for stage in stages:
        with suppress(Exception):  # Spark has dropped or skipped it
            data = store.lastStageAttempt(stage)
            read = {name: int(getattr(data, method)()) for name, method in _SUMS.items()}
            sums = {name: sums[name] + read[name] for name in sums}
    lineage = lineage_of(reversed([*_plans(spark, set(jobs), int(since * 1000))]))
    return {"spark_jobs": jobs, **sums, **({"lineage": lineage} if lineage else {})}


def _plans(spark: SparkSession, jobs: set[int], since_ms: int) -> Iterator[str]:
    """The plans of the queries that ran these jobs, the newest first. Each call of Spark's store is slow."""
    with suppress(Exception):  # nothing here is a public API of Spark
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
