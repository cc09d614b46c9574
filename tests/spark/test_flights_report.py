"""The whole pipeline against an independent computation with pandas from the source CSV.

On two months, or the whole year with ``GLIDEMQ_TEST_PROFILE=long``.
Quantiles are exact and linearly interpolated on both sides: at position ``(n - 1) * q`` of the sorted values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.spark.flights import build
from glidemq_orchestrate.spark.flights.flow import MONTHS_VARIABLE, chosen_months
from glidemq_orchestrate.spark.flights.report import check_totals
from glidemq_orchestrate.spark.flights.steps import source_directory
from glidemq_orchestrate.spark.handler import run_python_step
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.profile import IS_LONG

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.spec import FlowSpec
    from tests.spark.conftest import MakeRun

FLIGHTS_OF_THE_YEAR = 336_776
# Months, flights, cancelled; with weather, plane, destination; late departures in percent, median, p90.
YEAR = (range(1, 13), FLIGHTS_OF_THE_YEAR, 8_255, (335_220, 284_170, 329_174), (21.5, -2.0, 49.0))
CHANGES_OF_CLOCKS = ((3, 11), 28_834 + 27_268, 861 + 233, (56_007, 47_544, 54_819), (18.5, -2.0, 39.0))
MONTHS, FLIGHTS, CANCELLED, MATCHED, (LATE, MEDIAN, P90) = YEAR if IS_LONG else CHANGES_OF_CLOCKS
Results = dict[str, Any]
Measures = dict[tuple[str, str], Mapping[str, float]]

WRONG_LOCATIONS: list[tuple[str, str]] = [
    ("", "needs a location"),
    ("s3a://bucket/x", "needs a Spark session with a JVM; else use a local path"),
    ("/tmp/{x}", "as a pattern"),
]


def run_nodes(spec: FlowSpec, make_run: MakeRun, results: Results, *, until: str | None = None) -> Results:
    """Run the nodes without a result in topological order; values pass through JSON, as on the wire."""
    nodes = {node.name: node for node in spec.nodes}
    for checked in check_flow(spec).nodes:
        node = nodes[checked.name]
        if node.name not in results:
            run = make_run(node.data, {name: results[name] for name in node.after}, node=node.name)
            results[node.name] = json.loads(json.dumps(run_python_step(run.ctx)))
        if node.name == until:
            break
    return results


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "manual__2026-01-01T00:00:00+00:00 of flights"


@pytest.fixture(scope="module")
def _session(_spark_environment: None) -> None:
    """The session of this process, on which the steps run."""
    warm_session.get()


@pytest.fixture(scope="module")
def results(_session: None, location: Path, make_run: MakeRun) -> Results:
    return run_nodes(build(str(location), months=MONTHS), make_run, {})


@pytest.fixture(scope="module")
def table(results: Results) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(results["report"]["report"]).to_pylist()
    return rows


@pytest.fixture(scope="module")
def expected() -> Measures:
    source = source_directory()
    flights = pd.read_csv(source / "flights.csv.zip")
    weather = pd.read_csv(source / "weather.csv")[["origin", "time_hour", "visib", "precip", "wind_speed"]]
    flights = flights.merge(weather, how="left", on=["origin", "time_hour"])
    assert len(flights) == FLIGHTS_OF_THE_YEAR
    flights = flights[flights["month"].isin(MONTHS)]
    flights["route"] = flights["origin"] + "-" + flights["dest"]
    flights["hour_key"] = (flights["sched_dep_time"] // 100).map("{:02}".format)
    measures: Measures = {("all", "all"): measure(flights)}
    for section, column in [("carrier", "carrier"), ("route", "route"), ("hour", "hour_key")]:
        measures |= {(section, str(key)): measure(part) for key, part in flights.groupby(column)}
    buckets: dict[str, Callable[[pd.Series[Any]], str]] = {
        "visibility": lambda row: visibility(row["visib"]),
        "precipitation": lambda row: precipitation(row["precip"]),
        "wind": lambda row: wind(row["wind_speed"]),
    }
    distinct = flights[["visib", "precip", "wind_speed"]].drop_duplicates()
    for factor, bucket in buckets.items():
        known = distinct.assign(bucket=distinct.apply(bucket, axis=1))
        parts = flights.merge(known, on=["visib", "precip", "wind_speed"]).groupby("bucket")
        measures |= {("weather", f"{factor}/{key}"): measure(part) for key, part in parts}
    return measures


def measure(flights: pd.DataFrame) -> dict[str, float]:
    measures: dict[str, float] = {"flights": len(flights), "cancelled": int(flights["dep_time"].isna().sum())}
    for done, delay, column in [
        ("departed", "departure_delay", "dep_delay"),
        ("arrived", "arrival_delay", "arr_delay"),
    ]:
        minutes = flights[column].dropna()
        measures[done] = len(minutes)
        measures[f"{delay}_mean_min"] = float(minutes.mean())
        measures[f"{delay}_p50_min"] = float(minutes.quantile(0.5, interpolation="linear"))
        measures[f"{delay}_p90_min"] = float(minutes.quantile(0.9, interpolation="linear"))
        measures[f"{done}_late_share"] = (minutes > 15).sum() / len(minutes) if len(minutes) else math.nan
    return measures


def visibility(miles: float) -> str:
    if math.isnan(miles):
        return "9 no record"
    if miles < 1:
        return "3 under 1 mile"
    if miles < 5:
        return "2 1 to 5 miles"
    return "1 5 to 10 miles" if miles < 10 else "0 10 miles"


def precipitation(inches: float) -> str:
    if math.isnan(inches):
        return "9 no record"
    if inches == 0:
        return "0 none"
    return "1 light" if inches < 0.05 else "2 heavy"


def wind(mph: float) -> str:
    if math.isnan(mph) or mph > 150:
        return "9 no record"
    if mph < 10:
        return "0 under 10 mph"
    return "1 10 to 20 mph" if mph < 20 else "2 20 mph and more"


def test_the_flow_has_twenty_nodes_in_the_order_of_the_pipeline() -> None:
    spec = build("/data", queue="jvm")
    assert len(spec.nodes) == 20
    after = {node.name: set(node.after) for node in check_flow(spec).nodes}
    cleaned = {f"clean-{month:02}" for month in range(1, 13)}
    delays = {f"delay-by-{section}" for section in ("carrier", "route", "hour", "weather")}
    assert after == {
        "extract": set(),
        **{name: {"extract"} for name in cleaned},
        "join": {"extract", *cleaned},
        "quality": {"extract", "join"},
        **{name: {"quality"} for name in delays},
        "report": {"quality", *delays},
    }
    assert {(node.queue, node.job) for node in spec.nodes} == {("jvm", "spark.python")}


def test_months_must_be_months(subtests: pytest.Subtests) -> None:
    for months in ([], [0], [13], [1, 1]):
        with subtests.test(months=months), pytest.raises(InvalidFlow, match="months must be"):
            build("/data", months=months)


def test_months_of_the_environment_must_be_months(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for text in ("0", "1,13", "2,2", "1,", "January", "1;2"):
        with subtests.test(text=text):
            monkeypatch.setenv(MONTHS_VARIABLE, text)
            with pytest.raises(InvalidFlow, match="months must be"):
                chosen_months()


def test_the_environment_chooses_the_months(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for text, expected in (("", list(range(1, 13))), ("7", [7]), ("3, 1", [3, 1])):
        with subtests.test(text=text):
            monkeypatch.setenv(MONTHS_VARIABLE, text)
            assert chosen_months() == expected


@pytest.mark.long
def test_every_flight_of_the_months_is_in_the_report(results: Results) -> None:
    months = [results[f"clean-{month:02}"] for month in MONTHS]
    assert results["extract"]["total"] == FLIGHTS_OF_THE_YEAR
    assert all(month["rows_in"] == month["rows_out"] + month["rejected"] for month in months)
    assert sum(month["rows_out"] for month in months) == FLIGHTS
    assert sum(month["cancelled"] for month in months) == CANCELLED
    assert results["join"]["rows"] == FLIGHTS
    assert results["join"]["matched"] == dict(zip(("weather", "plane", "destination"), MATCHED, strict=True))
    assert results["quality"]["rows"] == FLIGHTS
    assert [check["passed"] for check in results["quality"]["checks"]] == [True] * 5
    assert (results["report"]["flights"], results["report"]["cancelled"]) == (FLIGHTS, CANCELLED)


@pytest.mark.long
def test_every_number_of_the_report_is_what_pandas_computes(
    table: list[dict[str, Any]], expected: Measures
) -> None:
    assert len(table) == len({(row["section"], row["key"]) for row in table})
    assert {(row["section"], row["key"]) for row in table} == set(expected)
    compared = 0
    for row in table:
        for name, wanted in expected[row["section"], row["key"]].items():
            got = row[name]
            if math.isnan(wanted):
                assert got is None, (row["section"], row["key"], name)
            else:
                assert got == pytest.approx(wanted, rel=1e-9, abs=1e-12), (row["section"], row["key"], name)
            compared += 1
    assert compared == len(table) * 12
    assert set(table[0]) == {"section", "key", "label", *expected["all", "all"]}


@pytest.mark.long
def test_the_report_is_one_sorted_file_and_the_chart_a_picture(
    results: Results, table: list[dict[str, Any]]
) -> None:
    assert Path(results["report"]["report"]).is_file()
    sections = list(dict.fromkeys(row["section"] for row in table))
    assert sections == ["all", "carrier", "route", "hour", "weather"]
    for section in sections:
        keys = [row["key"] for row in table if row["section"] == section]
        assert keys == sorted(keys)
    chart = Path(results["report"]["chart"]).read_bytes()
    assert chart.startswith(b"\x89PNG")
    assert (int.from_bytes(chart[16:20]), int.from_bytes(chart[20:24])) == (2100, 1540)
    assert len(results["report"]["summary"]) == 8
    assert results["report"]["summary"][0] == {
        "what": "all", "which": "All flights", "flights": FLIGHTS, "cancelled": CANCELLED,
        "late_percent": LATE, "median_min": MEDIAN, "p90_min": P90,
    }  # fmt: skip


@pytest.mark.long
def test_no_temporary_files_are_left(results: Results, location: Path) -> None:
    assert sorted(path.name for path in location.iterdir()) == [
        "clean", "delays", "joined", "raw", "report",
    ]  # fmt: skip
    assert not [path for path in location.rglob("*") if "tmp" in path.name or path.name == "_temporary"]


@pytest.mark.long
def test_a_step_that_runs_again_leaves_the_first_output_alone(
    results: Results, location: Path, make_run: MakeRun
) -> None:
    spec = build(str(location), months=[3])
    again = run_nodes(spec, make_run, {"extract": results["extract"]}, until="clean-03")["clean-03"]
    first = results["clean-03"]
    assert again["path"] != first["path"]
    assert Path(first["path"]).is_dir()
    assert {**again, "path": "", "outputs": []} == {**first, "path": "", "outputs": []}


@pytest.fixture
def one_month(_session: None, tmp_path: Path, make_run: MakeRun) -> tuple[FlowSpec, Results]:
    """A run of February in a place of its own, up to the clean step."""
    spec = build(str(tmp_path), months=[2])
    return spec, run_nodes(spec, make_run, {}, until="clean-02")


def rewrite(path: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Put changed rows in the place of a step's only file, and take away its checksum."""
    (file,) = Path(path).glob("*.parquet")
    table = pq.read_table(file)
    for checksum in Path(path).glob(".*.crc"):
        checksum.unlink()
    changed = change(pd.DataFrame({"row": range(table.num_rows)}))
    pq.write_table(table.take(changed["row"].to_list()), file)


@pytest.mark.long
def test_one_month_passes(one_month: tuple[FlowSpec, Results], make_run: MakeRun) -> None:
    spec, results = one_month
    assert run_nodes(spec, make_run, results)["report"]["flights"] == 24_951


@pytest.mark.long
def test_rows_lost_before_the_join_fail_the_quality_check(
    one_month: tuple[FlowSpec, Results], make_run: MakeRun
) -> None:
    spec, results = one_month
    rewrite(results["clean-02"]["path"], lambda rows: rows[7:])
    with pytest.raises(
        Unrecoverable, match=r"quality check: .*expected 24,951, found 24,944 \(7 missing\).*one row per"
    ):
        run_nodes(spec, make_run, results)
    assert "join" in results
    assert "quality" not in results


@pytest.mark.long
def test_rows_lost_by_the_join_fail_the_quality_check(
    one_month: tuple[FlowSpec, Results], make_run: MakeRun
) -> None:
    spec, results = one_month
    run_nodes(spec, make_run, results, until="join")
    rewrite(results["join"]["path"], lambda rows: rows[1:])
    with pytest.raises(Unrecoverable) as caught:
        run_nodes(spec, make_run, results)
    assert str(caught.value) == (
        "the flights failed their quality check: the join keeps one row per clean flight: "
        "expected 24,951, found 24,950 (1 missing)"
    )


@pytest.mark.long
def test_duplicated_rows_fail_the_check_even_where_the_count_fits(
    one_month: tuple[FlowSpec, Results], make_run: MakeRun
) -> None:
    spec, results = one_month
    rewrite(results["clean-02"]["path"], lambda rows: pd.concat([rows[3:], rows[10:13]]))
    with pytest.raises(
        Unrecoverable, match=r"flight keys are unique: expected 24,951, found 24,948 \(3 missing\)"
    ):
        run_nodes(spec, make_run, results)


@pytest.mark.long
def test_duplicates_and_broken_rows_are_set_aside_with_the_reason(
    one_month: tuple[FlowSpec, Results], make_run: MakeRun
) -> None:
    spec, earlier = one_month
    extracted = earlier["extract"]
    source = Path(extracted["path"], "flights", "month-02.csv")
    lines = source.read_text().splitlines()
    source.write_text("\n".join([*lines, lines[1], lines[2].replace("2013-02", "2013-13")]) + "\n")
    extracted["rows"]["02"] += 2
    results = run_nodes(spec, make_run, {"extract": extracted})
    cleaned = results["clean-02"]
    assert (cleaned["rows_in"], cleaned["rows_out"], cleaned["rejected"]) == (24_953, 24_951, 2)
    reasons = pq.read_table(cleaned["rejected_path"])["reject_reason"].to_pylist()
    assert sorted(reason.split(" ")[0] for reason in reasons) == ["absent", "repeats"]
    assert results["quality"]["rejected"] == 2
    assert results["report"]["flights"] == 24_951


@pytest.mark.long
def test_too_many_rejected_rows_fail_the_quality_check(
    one_month: tuple[FlowSpec, Results], make_run: MakeRun
) -> None:
    spec, results = one_month
    source = Path(results["extract"]["path"], "flights", "month-02.csv")
    source.write_text(source.read_text().replace(",EWR,", ",NA,"))
    with pytest.raises(Unrecoverable, match="rejected rows stay within the limit"):
        run_nodes(spec, make_run, {"extract": results["extract"]})


def test_a_section_that_does_not_add_up_fails_the_report() -> None:
    rows = [{"section": "all", "key": "all", "flights": 3}, {"section": "hour", "key": "05", "flights": 2}]
    with pytest.raises(Unrecoverable, match="does not add up to 3 flights: hour has 2"):
        check_totals(rows, 3)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_location_that_cannot_work_is_named(make_run: MakeRun, subtests: pytest.Subtests) -> None:
    for location, expected in WRONG_LOCATIONS:
        with subtests.test(location=location), pytest.raises(Unrecoverable, match=expected):
            run_nodes(build(location), make_run, {})
