"""The history pipeline: its tables against pandas, and all of it on a real server with a worker."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, JobOptions
from glidemq_orchestrate.spark import read_published
from glidemq_orchestrate.spark.charts import canvas
from glidemq_orchestrate.spark.history import build, report, transforms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import RunWorker
    from tests.spark.conftest import Start

START = datetime(2026, 1, 1, 23, 0, tzinfo=UTC)
SCHEMA = (
    "flow_id string, generation int, node string, flow_name string, flow_state string, queue string, "
    "job string, job_id string, state string, attempts int, worker string, failed_reason string, "
    "after array<string>, created_at timestamp, queued_at timestamp, started_at timestamp, "
    "finished_at timestamp, flow_created_at timestamp, flow_finished_at timestamp, collected_at timestamp, "
    "day date"
)
QUEUE_TIMEOUT = "queue timeout: no worker of queue nobody began it within N s"
NAMES = [part.split()[0] for part in SCHEMA.split(", ")]


def node(flow: str, name: str, begins: float, waits: float, runs: float, **given: Any) -> dict[str, Any]:
    """A node that was ready so many seconds after the flow began, waited and ran."""
    ready = START + timedelta(seconds=begins)
    row: dict[str, Any] = {
        "flow_id": flow, "generation": 0, "node": name, "flow_name": "nightly", "flow_state": "completed",
        "queue": "etl", "job": "work", "job_id": f"{flow}/{name}", "state": "completed", "attempts": 1,
        "worker": "w1", "failed_reason": None, "after": [], "created_at": START, "queued_at": ready,
        "started_at": ready + timedelta(seconds=waits),
        "finished_at": ready + timedelta(seconds=waits + runs), "flow_created_at": START,
        "flow_finished_at": START + timedelta(hours=2), "collected_at": START + timedelta(hours=3),
        "day": datetime(2026, 1, 2, tzinfo=UTC).date(),
    }  # fmt: skip
    return {**row, **given}


def table(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(row[name] for name in NAMES) for row in rows], SCHEMA)


def unstarted(flow: str, name: str, begins: float, waits: float, reason: str, **given: Any) -> dict[str, Any]:
    """A node that was ready so many seconds after the flow began, waited, and failed before it had begun."""
    row = node(flow, name, begins, waits, 0, state="failed", attempts=0, worker=None, failed_reason=reason)
    return {**row, "started_at": None, **given}


def random_rows(seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    states = ["completed"] * 8 + ["failed"]
    rows = [
        node(
            f"f{number // 10}",
            draw.choice([f"clean[{number}]", f"load-{number % 10}"]),
            draw.uniform(0, 50),
            draw.expovariate(1),
            draw.expovariate(0.1),
            queue=draw.choice(["etl", "spark"]),
            state=draw.choice(states),
            attempts=draw.choice([1, 1, 1, 3]),
            day=(START + timedelta(days=draw.randrange(3))).date(),
            generation=number,
            failed_reason=draw.choice(
                [None, "Timeout: after 30 s\nat x", "Timeout: after 5 s", "OOM 0xff", " ", "cancelled: "]
            ),
        )
        for number in range(400)
    ]
    reasons = [
        QUEUE_TIMEOUT.replace("N", "2"),
        "expired",
        "upstream failed: a",
        "upstream skipped: ",
        "cancelled: ",
    ]
    return rows + [
        unstarted(
            f"g{number}", "lonely", draw.uniform(0, 50), draw.expovariate(0.1), draw.choice(reasons),
            queue=draw.choice(["etl", "nobody"]), day=(START + timedelta(days=draw.randrange(3))).date(),
        )
        for number in range(60)
    ]  # fmt: skip


def counted_by_pandas(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The nodes that the tables count, with what is known of each, by pandas."""
    frame = pd.DataFrame(rows)
    reason = frame["failed_reason"].fillna("")
    follows = reason.str.startswith(("cancelled: ", "upstream "))
    frame["has_failed"] = (frame["state"] == "failed") & ~follows
    frame = frame[frame["started_at"].notna() | frame["has_failed"]].copy()
    frame["step"] = frame["node"].str.replace(r"\[\d+\]", "[*]", regex=True)
    begun = frame["started_at"].fillna(frame["finished_at"])
    frame["wait"] = (begun - frame["queued_at"]).dt.total_seconds()
    frame["run"] = (frame["finished_at"] - frame["started_at"]).dt.total_seconds()
    return frame


class TestTables:
    @pytest.mark.long
    def test_durations_are_those_of_pandas(self, spark: SparkSession) -> None:
        rows = random_rows(1)
        found = transforms.durations(transforms.timed(table(spark, rows))).toPandas()
        frame = counted_by_pandas(rows)
        keys = ["day", "queue", "flow_name", "step"]
        grouped = frame.groupby(keys)
        expected = grouped.agg(
            nodes=("node", "size"),
            failed=("has_failed", "sum"),
            retried=("attempts", lambda attempts: (attempts > 1).sum()),
            run_total_s=("run", "sum"),
        )
        for what in ("wait", "run"):
            for name, share in transforms.QUANTILES.items():
                expected[f"{what}_{name}_s"] = grouped[what].quantile(share)
        found = found.set_index(keys).sort_index()
        pd.testing.assert_frame_equal(found, expected.sort_index(), check_dtype=False, rtol=1e-5)

    @pytest.mark.long
    def test_causes_of_retries_are_those_of_pandas(self, spark: SparkSession) -> None:
        rows = random_rows(2)
        found = transforms.retries(transforms.timed(table(spark, rows))).toPandas()
        frame = counted_by_pandas(rows)
        frame = frame[(frame["attempts"] > 1) | frame["has_failed"]]
        causes = {
            "Timeout": "Timeout: after N s", "OOM 0xf": "OOM N", "expired": "expired",
            "queue t": QUEUE_TIMEOUT,
        }  # fmt: skip
        none = "(no reason is kept)"
        frame["cause"] = [causes.get((text or "")[:7], none) for text in frame["failed_reason"]]
        counted = frame.groupby(["queue", "step", "cause"]).agg(
            nodes=("node", "size"),
            failed=("has_failed", "sum"),
            more_attempts=("attempts", lambda attempts: (attempts - 1).clip(lower=0).sum()),
        )
        shown = found.set_index(["queue", "step", "cause"])[list(counted.columns)]
        pd.testing.assert_frame_equal(shown.sort_index(), counted.sort_index(), check_dtype=False)
        assert list(found["nodes"]) == sorted(found["nodes"], reverse=True)

    @pytest.mark.long
    def test_nodes_that_failed_before_they_began_count_with_their_wait(self, spark: SparkSession) -> None:
        late, after = QUEUE_TIMEOUT.replace("N", "2"), START + timedelta(seconds=9)
        rows = [
            node("f", "a", 0, 1, 4),
            unstarted("f", "lonely", 5, 2, late, queued_at=None, after=["a"], queue="nobody"),
            unstarted("f", "old", 1, 3, "expired", queue="nobody"),
            unstarted("f", "next", 7, 0, "upstream failed: lonely", queue="nobody"),
            unstarted("f", "other", 7, 0, "upstream skipped: a", queue="nobody"),
            unstarted("f", "stopped", 7, 0, "cancelled: deadline: late", queue="nobody"),
            unstarted("f", "skipped", 7, 0, "", state="skipped", queue="nobody"),
            node("f", "halted", 0, 1, 2, state="failed", failed_reason="cancelled: "),
            node("f", "again", 0, 1, 2, state="failed", attempts=3, failed_reason="cancelled: "),
            node("f", "own", 0, 1, 2, state="failed", failed_reason="upstream failed: says the handler"),
            node("f", "passed", 0, 1, 2, state="skipped", attempts=2, failed_reason="nothing new"),
            node("f", "odd", 0, 1, 2, started_at=after, finished_at=START),
        ]
        times = transforms.timed(table(spark, rows)).cache()
        counts = {
            row.step: (row.nodes, row.failed, row.retried, row.wait_p99_s, row.run_p99_s, row.run_total_s)
            for row in transforms.durations(times).collect()
        }
        assert counts == {
            "a": (1, 0, 0, 1, 4, 4), "lonely": (1, 1, 0, 2, None, 0), "old": (1, 1, 0, 3, None, 0),
            "halted": (1, 0, 0, 1, 2, 2), "again": (1, 0, 1, 1, 2, 2), "own": (1, 1, 0, 1, 2, 2),
            "passed": (1, 0, 1, 1, 2, 2),
        }  # fmt: skip
        causes = {row.step: (row.cause, row.failed) for row in transforms.retries(times).collect()}
        assert causes == {
            "lonely": (QUEUE_TIMEOUT, 1), "old": ("expired", 1), "again": ("(no reason is kept)", 0),
            "own": ("upstream failed: says the handler", 1), "passed": ("(no reason is kept)", 0),
        }  # fmt: skip
        ran = {"a", "halted", "again", "own", "passed"}
        assert {row.node for row in transforms.slowest(times).collect()} == ran
        assert {row.node for row in transforms.critical_paths(times).collect()} == {"a"}

    @pytest.mark.long
    def test_no_node_is_ready_before_its_flow_began(self, spark: SparkSession) -> None:
        early = START - timedelta(milliseconds=2)
        rows = [node("f", "a", 0, 0, 4, queued_at=early, started_at=early)]
        [found] = transforms.critical_paths(transforms.timed(table(spark, rows))).collect()
        assert (found.begins_s, found.wait_s) == (0, 0)

    @pytest.mark.long
    def test_the_critical_path_goes_back_from_the_last_end(self, spark: SparkSession) -> None:
        rows = [
            node("f", "load", 0, 1, 9),
            node("f", "fast", 10, 0, 1, after=["load"]),
            node("f", "slow", 10, 2, 28, after=["load"]),
            node("f", "join", 40, 5, 15, after=["fast", "slow"]),
            node("f", "short", 12, 0, 1, after=["fast"]),
            node("g", "alone", 0, 3, 4),
            node("h", "loop", 0, 0, 1, after=["pool"]),
            node("h", "pool", 0, 0, 2, after=["loop"]),
        ]
        paths = transforms.critical_paths(transforms.timed(table(spark, rows))).collect()
        by_flow: dict[str, list[Any]] = {}
        for row in sorted(paths, key=lambda one: one.place):
            by_flow.setdefault(row.flow_id, []).append(
                (row.node, row.begins_s, row.wait_s, row.run_s, row.flow_s)
            )
        assert by_flow["f"] == [
            ("load", 0, 1, 9, 7200), ("slow", 10, 2, 28, 7200), ("join", 40, 5, 15, 7200),
        ]  # fmt: skip
        assert by_flow["g"] == [("alone", 0, 3, 4, 7200)]
        assert [one[0] for one in by_flow["h"]] == ["loop", "pool"]

    @pytest.mark.long
    def test_a_node_without_a_time_was_ready_when_the_last_before_it_ended(self, spark: SparkSession) -> None:
        rows = [
            node("f", "a", 0, 1, 4, queued_at=None),
            node("f", "b", 0, 0, 7),
            node("f", "c", 7, 2, 1, queued_at=None, after=["a", "b"]),
            node("f", "d", 8, 0, 0, state="skipped", started_at=None, finished_at=START),
        ]
        found = {row.node: row.wait_s for row in transforms.timed(table(spark, rows)).collect()}
        assert found == {"a": 1, "b": 0, "c": 2}

    @pytest.mark.long
    def test_a_node_counts_once_as_it_was_collected_last(self, spark: SparkSession) -> None:
        late = START + timedelta(hours=9)
        old = [node("f", "a", 0, 0, 1), node("f", "b", 0, 0, 1), node("f", "a", 0, 0, 1, generation=1)]
        new = [node("f", "a", 0, 0, 5, collected_at=late), node("g", "a", 0, 0, 1, collected_at=late)]
        merged = transforms.newest(table(spark, [*new, *old]))
        found = sorted(
            (row.flow_id, row.generation, row.node, row.run_s) for row in transforms.timed(merged).collect()
        )
        assert found == [("f", 0, "a", 5), ("f", 0, "b", 1), ("f", 1, "a", 1), ("g", 0, "a", 1)]

    @pytest.mark.long
    def test_a_flow_that_was_retried_on_another_day_counts_as_it_ended_last(
        self, spark: SparkSession
    ) -> None:
        later, day = START + timedelta(days=1), (START + timedelta(days=2)).date()
        rows = [
            node("f", "a", 0, 0, 1, state="failed"),
            node("f", "a", 90_000, 0, 5, day=day, collected_at=later),
        ]
        times = transforms.timed(transforms.newest(table(spark, rows)))
        (found,) = transforms.durations(times).collect()
        assert (found.day, found.nodes, found.failed, found.run_total_s) == (day, 1, 0, 5)

    @pytest.mark.long
    def test_the_slowest_come_first(self, spark: SparkSession) -> None:
        rows = [node("f", f"n{number}", 0, 0, number) for number in range(150)]
        found = [row.run_s for row in transforms.slowest(transforms.timed(table(spark, rows))).collect()]
        assert found == [float(number) for number in range(149, 49, -1)]


@pytest.mark.long
def test_a_chart_is_drawn_also_of_nothing(spark: SparkSession, tmp_path: Path) -> None:
    times = transforms.timed(table(spark, random_rows(3)))
    rows = {
        "durations": transforms.durations(times),
        "slowest": transforms.slowest(times),
        "retries": transforms.retries(times),
        "path": transforms.critical_paths(times).where("flow_id = 'f0' and generation = 0"),
    }
    tables = {name: [row.asDict() for row in frame.collect()] for name, frame in rows.items()}
    for name, given in (("full", tables), ("empty", {name: [] for name in tables})):
        report.write_chart(given, 30, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    said: Any = report.summary(tables)
    assert said["nodes"] == sum(row["nodes"] for row in tables["durations"]) > 400
    assert said["failed"] == sum(row["failed"] for row in tables["retries"])
    assert said["slowest_node"]["run_s"] == round(tables["slowest"][0]["run_s"], 1)
    empty: Any = report.summary({name: [] for name in tables})
    assert (empty["nodes"], empty["longest_flow"], empty["commonest_cause"]) == (0, None, None)


@pytest.mark.long
def test_axes_begin_at_zero_and_no_dot_is_cut(spark: SparkSession) -> None:
    times = transforms.timed(table(spark, [node("f", "a", 50, 3, 7)]))
    axes = canvas().add_axes((0.1, 0.1, 0.8, 0.8))
    report._draw_path(axes, [row.asDict() for row in transforms.critical_paths(times).collect()])
    assert axes.get_xlim()[0] == 0
    axes = canvas().add_axes((0.1, 0.1, 0.8, 0.8))
    report._draw_days(axes, [row.asDict() for row in transforms.durations(times).collect()])
    assert (axes.get_ylim(), [line.get_clip_on() for line in axes.lines]) == ((0, 3.24), [False, False])


@pytest.fixture
def serving(start: Start, url: str) -> Any:
    """Workers: one that runs Spark steps in a session host, and one for what the flows do."""
    conf = json.dumps({"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g"})
    return start(
        sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "spark",
        "--app", "glidemq_orchestrate.spark",
        GLIDEMQ_SPARK_MASTER="local[2]", GLIDEMQ_SPARK_CONF=conf,
    )  # fmt: skip


@pytest.mark.long
def test_ended_flows_become_history_once_each(
    url: str, serving: Any, spark: SparkSession, run_worker: RunWorker, tmp_path: Path
) -> None:
    fails = {"b"}

    def work(ctx: Context) -> str:
        if ctx.node in fails:
            fails.discard(str(ctx.node))
            raise ValueError(f"no row {ctx.attempt}7")
        return "done"

    run_worker(["etl"], {"work": work}, url=url)
    nodes = [FlowNode("a", queue="etl", job="work")]
    nodes += [FlowNode("b", queue="etl", job="work", after=["a"], options=JobOptions(attempts=2))]
    nodes += [FlowNode("c", queue="etl", job="work", after=["b"])]
    location, long = str(tmp_path / "history"), timedelta(seconds=240)
    with FlowProducer(url) as flows:
        for number in range(3):
            flows.submit(FlowSpec("nightly", nodes), flow_id=f"f{number}").result(timeout=long)
        open_ = flows.submit(FlowSpec("open", [FlowNode("x", queue="nobody", job="work")]), flow_id="open")
        first: Any = flows.submit(build(location), flow_id="h1").result(timeout=long)
        # Begun anew, and one more; the rest is read again, as it lies within the overlap.
        flows.submit(FlowSpec("nightly", nodes), flow_id="f0", on_existing="restart").result(timeout=long)
        second: Any = flows.submit(build(location), flow_id="h2").result(timeout=long)
        open_.cancel("enough")
    assert (first["collect"]["flows"], first["collect"]["nodes"]) == (3, 9)
    rows = read_published(spark, f"{location}/nodes").collect()
    mine = [row for row in rows if row.flow_name == "nightly"]
    keys = [(row.flow_id, row.generation, row.node) for row in mine]
    assert len(keys) == len(set(keys)) == 12, "nine of before, three of the new generation"
    assert {row.flow_name for row in rows} == {"nightly", "history"}
    chart, said = Path(second["report"]["chart"]), second["report"]["summary"]
    assert chart.read_bytes().startswith(b"\x89PNG")
    causes = {row.cause: row.nodes for row in read_published(spark, second["retries"]).collect()}
    assert causes.get("ValueError: no row N") == 1
    path = read_published(spark, second["critical_paths"]).where("flow_id = 'f1'").orderBy("place").collect()
    assert [row.node for row in path] == ["a", "b", "c"]
    assert all(row.wait_s >= 0 and row.run_s >= 0 for row in path)
    assert (said["nodes"], said["failed"], said["retried"]) == (18, 0, 1), "12, and six of the first history"
