"""Pure DataFrame to DataFrame functions of the history pipeline: no files, no session, no clock.

Their input is the rows of the table ``nodes`` of the data source (``spark.source``), with ``flow_created_at``
and ``flow_finished_at`` of their flow. Durations are in seconds; a day is the UTC day on which the flow
ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Window  # noqa: TID253  loaded by Spark steps only
from pyspark.sql import functions as fn  # noqa: TID253

if TYPE_CHECKING:
    import pandas as pd

KEY: Final = ("flow_id", "generation", "node")
COLUMNS: Final = (
    *KEY, "flow_name", "flow_state", "queue", "job", "job_id", "state", "attempts", "worker", "failed_reason",
    "after", "created_at", "queued_at", "started_at", "finished_at", "flow_created_at", "flow_finished_at",
)  # fmt: skip
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MAX_SLOWEST: Final = 100
MAX_CAUSES: Final = 100
CAUSE_CHARACTERS: Final = 200
CANCELLED: Final = "cancelled: "
UPSTREAM: Final = r"^upstream \w+: "
"""How the reasons of nodes begin that ended because of other nodes without running."""
PATH_SCHEMA: Final = (
    "flow_id string, generation int, flow_name string, day date, flow_s double, place int, node string, "
    "queue string, begins_s double, wait_s double, run_s double"
)


def newest(nodes: DataFrame) -> DataFrame:
    """Each node of a generation of a flow once: the row that was collected last.

    A flow that is retried after its end ends again, maybe on another day, so that it has rows of both.
    """
    last = Window.partitionBy(*KEY).orderBy(fn.col("collected_at").desc(), fn.col("job_id"))
    return nodes.withColumn("_rank", fn.row_number().over(last)).where("_rank = 1").drop("_rank")


def timed(nodes: DataFrame) -> DataFrame:
    """The nodes that ran and ended, or failed without having run: with times, ``step`` and ``has_failed``.

    Other nodes that did not run are omitted: they were skipped or cancelled, their flow was stopped, or their
    dependencies ended so that they could not run. ``has_failed``: the node failed permanently, and not
    because of other nodes; a node that was cancelled while it ran has not failed.

    ``step`` is the node without its place in a fan-out: ``clean[*]`` for ``clean[17]``. ``ready_at`` is when
    it could have started: when it became ready for a worker, if the server stores that; else when its last
    dependency ended, else when the flow was submitted. ``wait_s`` is the time from then to the start of its
    last attempt, 0 or more, and ``run_s`` the time from there to its end. If no worker started it, as after a
    queue timeout, ``wait_s`` lasts until its end and ``run_s`` is null.
    """
    ended = nodes.withColumn("has_failed", (fn.col("state") == "failed") & ~_follows()).where(
        "finished_at >= started_at or (has_failed and started_at is null and finished_at is not null)"
    )
    begun = fn.coalesce("started_at", "finished_at")
    return (
        ended.join(_last_before(ended, nodes), list(KEY), "left")
        .withColumn("ready_at", fn.least(fn.coalesce("queued_at", "_last", "created_at"), begun))
        .withColumn("step", fn.regexp_replace("node", r"\[\d+\]", "[*]"))
        .withColumn("wait_s", _seconds(fn.col("ready_at"), begun))
        .withColumn("run_s", _seconds(fn.col("started_at"), fn.col("finished_at")))
        .drop("_last")
    )


def _last_before(ended: DataFrame, nodes: DataFrame) -> DataFrame:
    """When the last dependency of each node ended, as ``_last``, for nodes without ``queued_at``."""
    edges = ended.where("queued_at is null").select(*KEY, fn.explode("after").alias("_before"))
    ends = nodes.select(
        "flow_id", "generation", fn.col("node").alias("_before"), fn.col("finished_at").alias("_end")
    )
    known = edges.join(ends, ["flow_id", "generation", "_before"])
    return known.groupBy(*KEY).agg(fn.max("_end").alias("_last"))


def durations(times: DataFrame) -> DataFrame:
    """How long nodes waited and ran: a row for each ``day``, ``queue``, ``flow_name`` and ``step``.

    Columns: these, ``nodes``, ``failed``, ``retried`` (nodes), ``run_total_s``, and for ``wait`` and ``run``
    the exact quantiles ``_p50_s``, ``_p90_s`` and ``_p99_s``, linearly interpolated. ``nodes`` counts those
    of ``timed``, ``failed`` those with ``has_failed``, including nodes that no worker started, as after a
    queue timeout. These waited and did not run: if none ran, the quantiles of ``run`` are null, and
    ``run_total_s`` is 0.
    """
    quantiles = [
        fn.percentile(f"{what}_s", share).alias(f"{what}_{name}_s")
        for what in ("wait", "run")
        for name, share in QUANTILES.items()
    ]
    return times.groupBy("day", "queue", "flow_name", "step").agg(
        fn.count("*").alias("nodes"),
        fn.count_if("has_failed").alias("failed"),
        fn.count_if(fn.col("attempts") > 1).alias("retried"),
        fn.coalesce(fn.sum("run_s"), fn.lit(0.0)).alias("run_total_s"),
        *quantiles,
    )


def slowest(times: DataFrame) -> DataFrame:
    """The hundred nodes with the longest runs, the longest first."""
    ran = times.where("started_at is not null")
    columns = (*KEY, "day", "flow_name", "step", "queue", "state", "attempts", "worker", "wait_s", "run_s")
    return ran.select(*columns).orderBy(fn.col("run_s").desc(), *KEY).limit(MAX_SLOWEST)


def retries(times: DataFrame) -> DataFrame:
    """Why nodes ran more than once, or failed: the hundred causes with the most nodes.

    A cause is the first line of the reason of the last failure, with ``N`` for each number in it, so that
    reasons that differ only in an id are the same cause; ``(no reason is kept)`` if there is none. Nodes that
    were cancelled or skipped, or ended because of others, are included only if they had run more than once;
    the reasons of their earlier attempts are not stored. Columns: ``queue``, ``step``, ``cause``, ``nodes``,
    ``failed`` (nodes, as in ``durations``), ``more_attempts``, ``example`` (a flow id).
    """
    line = fn.split_part(fn.col("failed_reason"), fn.lit("\n"), fn.lit(1))
    plain = fn.regexp_replace(line, r"\b0x[0-9a-fA-F]+\b|\d+", "N")
    is_cause = (fn.trim(plain) != "") & ~_follows() & (fn.col("state") != "skipped")
    cause = fn.when(is_cause, fn.substring(plain, 1, CAUSE_CHARACTERS))
    again = times.where("attempts > 1 or has_failed").withColumn(
        "cause", fn.coalesce(cause, fn.lit("(no reason is kept)"))
    )
    counted = again.groupBy("queue", "step", "cause").agg(
        fn.count("*").alias("nodes"),
        fn.count_if("has_failed").alias("failed"),
        fn.sum(fn.greatest(fn.col("attempts") - 1, fn.lit(0))).alias("more_attempts"),
        fn.min("flow_id").alias("example"),
    )
    return counted.orderBy(fn.col("nodes").desc(), "queue", "step", "cause").limit(MAX_CAUSES)


def critical_paths(times: DataFrame) -> DataFrame:
    """The critical path of each flow: a row for each node on the path, from the first to the last.

    Only nodes that ran are on it. The path ends with the node that ended last. Before each node is the
    dependency that ended last (of several, the first by name). To make a flow faster, make one of these nodes
    faster. Columns: ``PATH_SCHEMA``; ``flow_s`` is from the submission to the end of the flow, ``begins_s``
    from the submission until the node was ready, 0 or more. The nodes of one flow are in the memory of one
    task.
    """
    columns = (*KEY, "flow_name", "day", "queue", "after", "flow_created_at", "flow_finished_at")
    ran = times.where("started_at is not null")
    known = ran.select(*columns, "ready_at", "finished_at", "wait_s", "run_s")
    return known.groupBy("flow_id", "generation").applyInPandas(_critical_path, PATH_SCHEMA)


def _critical_path(nodes: pd.DataFrame) -> pd.DataFrame:
    by_name = nodes.sort_values("node").set_index("node")
    ends: dict[Any, Any] = by_name["finished_at"].to_dict()
    after: dict[Any, Any] = by_name["after"].to_dict()
    path = dict[str, None]()
    place = max(sorted(ends), key=ends.__getitem__)
    while place not in path:  # a flow has no cycle, but stored data could have one
        path[place] = None
        before = sorted(name for name in after[place] if name in ends)
        if not before:
            break
        place = max(before, key=ends.__getitem__)
    rows = by_name.loc[list(path)[::-1]].reset_index()
    submitted = rows["flow_created_at"]
    rows["flow_s"] = (rows["flow_finished_at"] - submitted).dt.total_seconds()
    rows["begins_s"] = (rows["ready_at"] - submitted).dt.total_seconds().clip(lower=0)  # clocks differ
    rows["place"] = range(1, len(rows) + 1)
    names = [part.split()[0] for part in PATH_SCHEMA.split(", ")]
    return rows[names]


def _follows() -> Column:
    """Whether a node ended because of others, or because it or its flow was stopped."""
    reason = fn.coalesce("failed_reason", fn.lit(""))
    return reason.startswith(CANCELLED) | (reason.rlike(UPSTREAM) & fn.isnull("started_at"))


def _seconds(start: Column, end: Column) -> Column:
    return (fn.unix_micros(end) - fn.unix_micros(start)) / 1_000_000
