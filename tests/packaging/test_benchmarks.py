"""The harness of the benchmarks runs, with our own contender alone and tiny sizes; figures do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import instructions
from benchmarks.recovery import back_after
from benchmarks.steady import FLOWS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    """What a program of ``benchmarks`` prints."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


@pytest.mark.long
def test_every_row_has_a_figure_of_ours() -> None:
    report = json.loads(run("benchmarks", "--rivals=", "--scale", "0.002", "--rounds", "1", "--json"))
    figures = report["figures"]
    assert all(found["glidemq"] >= 0 for found in figures.values())
    rows = ["add one by one, jobs/s", "add in bulk, jobs/s", "drain at 50, jobs/s", "add to finished p99, ms"]
    shapes = ["fan-in of 101", "columns of 101", "layers of 101", "chain of 100"]
    assert {*rows, *(f"submit {shape}, ms" for shape in shapes)} <= figures.keys()
    assert {row["shape"] for row in report["flow sizes"]} == {"mesh", "fan-in", "fan-out"}
    assert all(row["bytes/node"] > 0 for row in report["flow sizes"])


@pytest.mark.long
def test_the_profile_names_the_sides_and_the_functions() -> None:
    profile = run("benchmarks.profile_worker", "--jobs", "200")
    assert "fcall" in profile
    assert "worker/runner.py" in profile


@pytest.mark.parametrize(
    "work",
    [pytest.param("add", marks=pytest.mark.long), "drain", pytest.param("run mesh", marks=pytest.mark.long)],
)
def test_what_is_counted_is_done(work: str, url: str, redis_client: Any) -> None:
    for todo in (instructions.WORKS[work], work):
        if todo:
            instructions.do(ROOT, url, todo, 200)
    has_run = work.startswith(("drain", "run"))
    assert redis_client.zcard("glide:{bench}:completed") >= 200 * has_run
    assert (redis_client.xlen("glide:{bench}:stream") == 0) is has_run


def quick(module: str, *arguments: str) -> Any:
    """What a benchmark reports in its shortest form."""
    return json.loads(run(f"benchmarks.{module}", "--quick", "--json", *arguments))


@pytest.mark.long
def test_the_soak_watches_every_process_and_knows_how_every_flow_ended(tmp_path: Path) -> None:
    report = quick("soak", "--plot", str(tmp_path / "soak.svg"))
    assert report["wrong"] == []
    ends = report["ends"]["client"]["ends"]
    kinds = {f"{make().name} {state}": make for make, state in FLOWS.items()}
    assert all(ends[kind] > 0 for kind in kinds)
    assert ends.keys() == {*kinds, "nodes", "plain jobs"}
    workers = {name for name in report["ends"] if name.startswith("worker")}
    assert workers == {"worker, async", "worker, threads", "worker, processes"}
    assert all(report["ends"][name]["completed"] > 0 for name in workers)
    for process in (*workers, "supervisor", "client", "server"):
        for what in ("memory, MiB", "descriptors", "threads"):
            assert report["trends"][f"{process}: {what}"]["level"] > 0
    assert report["trends"]["server: keys"]["level"] > 50
    assert report["samples"] >= 24
    assert all(len(values) == len(report["hours"]) for values in report["series"].values())
    assert "minutes" in (tmp_path / "soak.svg").read_text()


@pytest.mark.long
def test_what_a_spark_step_costs_is_above_its_action() -> None:
    figures = quick("spark_steps")["figures"]
    assert 0 < figures["bare action"] < figures["whole step"]
    assert 0 < figures["above"] <= figures["above p90"]


@pytest.mark.long
def test_all_of_many_flows_end_and_are_counted(tmp_path: Path) -> None:
    report = quick("many_flows", "--plot", str(tmp_path / "many.svg"))
    figures = report["figures"]
    assert figures["nodes"] == 40 * 101
    assert figures["bytes per node at the end"] > 100
    assert figures["function calls per node"] > 0
    assert (
        0 < figures["submission to end p50, s"] <= figures["submission to end max, s"] <= figures["seconds"]
    )
    assert {row["which"]: row["flows"] for row in report["fairness"]} == {
        "first tenth": 4, "middle tenth": 4, "last tenth": 4, "fan-in": 14, "ladder": 13, "mesh": 13,
    }  # fmt: skip
    assert "submitted" in (tmp_path / "many.svg").read_text()


@pytest.mark.long
def test_tags_and_histories_are_compared_with_a_job_without_options() -> None:
    rows = {row["job with"]: row for row in quick("features")}
    assert rows["no options"]["more_percent"] == 0
    assert {"one tag", "three tags", "a history"} < rows.keys()
    assert all(row[phase] > 0 for row in rows.values() for phase in ("add_us", "start_us", "end_us"))


@pytest.mark.long
def test_the_commands_alone_cost_less_than_the_library() -> None:
    rows = quick("floor")
    assert len(rows) == 2
    assert all(0 < row["commands alone"] < row["ours"] for row in rows)


@pytest.mark.long
def test_an_array_is_measured_with_both_kinds_of_handlers() -> None:
    command = ["-m", "benchmarks.elements", "--elements", "2000", "--rounds", "1", "--only", "glidemq"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("glidemq")]
    assert len(rows) == 2, done.stdout
    assert all("2,000" in row for row in rows)


@pytest.mark.long
def test_what_running_again_costs_is_compared_with_a_submission() -> None:
    report = quick("again")
    ways = {row["way"]: row for row in report["ways"]}
    assert list(ways) == [
        "submit a new flow",
        "submit with restart",
        "flow.restart()",
        "the last node changed",
        "rerun the last node",
        "rerun one that 54 follow",
    ]
    assert ways["submit a new flow"]["ratio"] == 1.0
    assert all(row["seconds"] > 0 for row in ways.values())
    assert all(ways[way]["server ms"] > 0 for way in list(ways)[:4])


@pytest.mark.long
def test_latency_counts_from_the_intended_arrival(tmp_path: Path) -> None:
    report = quick("under_load", "--plot", str(tmp_path / "load.svg"))
    tables = report["latencies, ms"]
    assert set(tables) == {"add to start", "add to result", "end to start", "due to call"}
    for rows in tables.values():
        assert [row["load"] for row in rows] == ["10%", "50%"]
        assert all(0 < row["p50"] <= row["p95"] <= row["p99"] <= row["p99.9"] for row in rows)
    kinds = ("add to start", "add to result", "due to call")
    for started, ended, called in zip(*(tables[kind] for kind in kinds), strict=True):
        assert called["p50"] < started["p50"] < ended["p50"]
        assert started["samples"] == ended["samples"] > 20
    assert "% of capacity" in (tmp_path / "load.svg").read_text()


@pytest.mark.long
def test_jobs_of_a_killed_worker_run_again_and_end(tmp_path: Path) -> None:
    for _ in range(3):
        report = quick("recovery", "--plot", str(tmp_path / "recovery.svg"))
        if report["runs"]["kill -9 of a worker"][0]["again"]:  # else all it had was accepted just before
            break
    assert {name: len(found) for name, found in report["runs"].items()} == {
        "kill -9 of a worker": 1, "kill -9 of the server": 1,
    }  # fmt: skip
    worker, server = (found[0] for found in report["runs"].values())
    assert min(worker["active"], server["active"]) > 10
    assert worker["unended"] == server["unended"] == 0
    assert worker["again"] > 0
    assert worker["all_ended"] > 0.3  # not before a lease of 1 s expires
    assert server["lasted"] > 0
    assert "kill -9 of the server" in (tmp_path / "recovery.svg").read_text()


def test_throughput_is_back_when_two_seconds_in_a_row_have_it() -> None:
    before = [at / 100 for at in range(1_000)]
    pause = [13 + at / 100 for at in range(400)]
    assert back_after([*before, *pause], at=5, wanted=90) == 0
    assert back_after([*before, *pause], at=10, wanted=90) == pytest.approx(3, abs=0.2)
    assert back_after([*before, *pause[:150]], at=10, wanted=90) is None
    assert back_after([*before, *pause], at=10, wanted=120) is None


@pytest.mark.long
def test_each_number_of_worker_processes_is_measured() -> None:
    rows = quick("scaling")["rows"]
    assert [(row["jobs"], row["processes"]) for row in rows] == [
        (jobs, processes) for jobs in ("nothing", "compute") for processes in (1, 2, 4)
    ]
    assert [row["to_one_process"] for row in rows if row["processes"] == 1] == [1, 1]


@pytest.mark.long
def test_primaries_are_measured_with_and_without_shards() -> None:
    rows = quick("shards")
    assert [row["shards"] for row in rows] == [0, 12]


@pytest.mark.long
def test_steps_of_dagster_are_measured_in_every_way() -> None:
    rows = quick("dagster_steps")["rows"]
    assert [row["as"] for row in rows] == [
        "glidemq",
        "forkserver",
        "multiprocess",
        "in_process",
        "assets",
        "one_op",
    ]
    assert all(row["steps"] == 6 and row["processor s a step"] > 0 and row["s"] > 0 for row in rows)
