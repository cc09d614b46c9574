"""Progress and facts of a step: stages, tasks and missing executors; bytes and time, data read and written.

The data sets come from the plans of its queries, as the SQL page of Spark's UI shows them: a plan names the
folders of each scan and of each write. Of a scan of several folders it names the first; the nodes of the
graph on that page name all, up to ``spark.sql.maxMetadataStringLength`` characters. Data that is read or
written in other ways (JDBC, RDDs) is not listed.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.wire.codec import Json

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

POLL_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0


def summed(counts: Iterable[tuple[int, int, int, int]]) -> dict[str, int]:
    """The sums of ``stages_done``, ``stages``, ``tasks_done`` and ``tasks``."""
    names = ("stages_done", "stages", "tasks_done", "tasks")
    columns = list(zip(*counts, strict=True)) or [()] * len(names)
    return {name: sum(column) for name, column in zip(names, columns, strict=True)}


class StageProgress:
    """Counts the stages and tasks of the Spark jobs in one group.

    The totals grow while a step submits more jobs; the done counts never shrink. Stages that Spark skipped,
    because their output existed, count as done without tasks once their job has succeeded. Spark keeps the
    last thousand jobs of a session; those that it has dropped count as they were last seen.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._ended: set[int] = set()
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def read(self) -> dict[str, int]:
        """Return the current counts, as ``summed``."""
        for number in set(self._tracker.getJobIdsForGroup(self._group)) - self._ended:
            self._seen[number] = self._job(number)
        return summed(self._seen.values())

    @property
    def jobs(self) -> list[int]:
        """All jobs that were ever seen."""
        return sorted(self._seen)

    def _job(self, number: int) -> tuple[int, int, int, int]:
        job = self._tracker.getJobInfo(number)
        if job is None:
            return self._seen.get(number, (0, 0, 0, 0))
        infos = [self._tracker.getStageInfo(stage) for stage in job.stageIds]
        started = [info for info in infos if info is not None]
        tasks_done = sum(info.numCompletedTasks for info in started)
        if job.status == "SUCCEEDED":
            self._ended.add(number)
            return len(infos), len(infos), tasks_done, tasks_done
        done = sum(info.numCompletedTasks >= info.numTasks for info in started)
        return done, len(infos), tasks_done, sum(info.numTasks for info in started)


class Starvation:
    """How long the jobs of a step have waited while no executor ran anything of the session.

    Tasks of other steps of the session count as running: then the step waits for its turn, not for executors.

    Args:
        tracker: Spark's status tracker.
        group: The group of the jobs.
        patience: Seconds after which ``has_given_up`` is true.
        clock: For tests.
    """

    def __init__(
        self,
        tracker: StatusTracker,
        group: str,
        patience: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker, self.group, self._patience, self._clock = tracker, group, patience, clock
        self._since: float | None = None
        self.has_given_up = False

    def read(self) -> float:
        """Return the seconds; 0 if something runs, or the step has no job."""
        infos = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        runs = any(info is not None and info.numActiveTasks > 0 for info in infos)
        jobs = self._tracker.getJobIdsForGroup(self.group)
        if runs or set(self._tracker.getActiveJobsIds()).isdisjoint(jobs):
            self._since = None
            return 0.0
        self._since = self._clock() if self._since is None else self._since
        seconds = self._clock() - self._since
        self.has_given_up = seconds >= self._patience
        return seconds


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


def is_shortened(plan: str) -> bool:
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
    store = _scala(context).statusStore()
    for stage in stages:
        with suppress(Exception):  # Spark has dropped or skipped it
            data = store.lastStageAttempt(stage)
            read = {name: int(getattr(data, method)()) for name, method in _SUMS.items()}
            sums = {name: sums[name] + read[name] for name in sums}
    lineage = lineage_of(reversed([*_plans(spark, set(jobs), int(since * 1000))]))
    return {"spark_jobs": jobs, **sums, **({"lineage": lineage} if lineage else {})}


def await_counts(context: SparkContext) -> None:
    """Wait until Spark has counted all that has happened, at most a second."""
    with suppress(Exception):  # it did not process all events in time
        _scala(context).listenerBus().waitUntilEmpty(LISTENER_MS)


def _scala(context: SparkContext) -> Any:
    jvm: Any = context
    return jvm._jsc.sc()  # noqa: SLF001  no public way; the pages of Spark's UI read it


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
                if is_shortened(plan):
                    nodes = store.planGraph(query.executionId()).allNodes()
                    yield from (str(nodes.apply(at).desc()) for at in range(nodes.size()))
