from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as fn

from glidemq_orchestrate.spark.flights import transforms
from glidemq_orchestrate.spark.flights.transforms import DELAYS, FLIGHTS, RAW_FLIGHTS, RAW_PLANES, RAW_WEATHER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

GOOD = {
    "year": "2013", "month": "1", "day": "2", "dep_time": "601", "sched_dep_time": "545", "dep_delay": "16",
    "arr_time": "900", "sched_arr_time": "850", "arr_delay": "10", "carrier": "UA", "flight": "15",
    "tailnum": "N1", "origin": "EWR", "dest": "ORD", "air_time": "120", "distance": "719", "hour": "5",
    "minute": "45", "time_hour": "2013-01-02T10:00:00Z",
}  # fmt: skip

UNUSABLE_ROWS: list[tuple[dict[str, str | None], str]] = [
    ({"carrier": "NA"}, "absent or unreadable: carrier"),
    ({"flight": "x", "dest": ""}, "absent or unreadable: dest, flight"),
    ({"dep_delay": "1.5"}, "absent or unreadable: dep_delay"),
    ({"day": "31", "month": "2"}, "absent or unreadable: date"),
    ({"time_hour": "yesterday"}, "absent or unreadable: time_hour"),
    ({"time_hour": "2013-01-02T11:00:00Z"}, "time_hour is not the hour of sched_dep_time"),
]

FACTORS: list[tuple[float, float | None, float | None, set[str]]] = [
    (10.0, 0.0, 9.9, {"visibility/0 10 miles", "precipitation/0 none", "wind/0 under 10 mph"}),
    (9.9, 0.01, 10.0, {"visibility/1 5 to 10 miles", "precipitation/1 light", "wind/1 10 to 20 mph"}),
    (1.0, 0.05, 20.0, {"visibility/2 1 to 5 miles", "precipitation/2 heavy", "wind/2 20 mph and more"}),
    (0.0, None, None, {"visibility/3 under 1 mile", "precipitation/9 no record", "wind/9 no record"}),
]


def raw_flights(spark: SparkSession, *changes: dict[str, str | None]) -> DataFrame:
    rows = [tuple({**GOOD, **change}[name] for name in RAW_FLIGHTS.names) for change in changes]
    return spark.createDataFrame(rows, RAW_FLIGHTS)


def reasons(frame: DataFrame) -> list[str | None]:
    return sorted(
        (row["reject_reason"] for row in transforms.typed_flights(frame).collect()),
        key=lambda text: text or "",
    )


def test_a_flight_gets_types_keys_and_both_clocks(spark: SparkSession) -> None:
    row = transforms.typed_flights(raw_flights(spark, {})).collect()[0].asDict()
    assert row == {
        "flight_key": "2013-01-02 EWR UA 15",
        "flight_date": date(2013, 1, 2),
        "month": 1,
        "carrier": "UA",
        "flight_number": 15,
        "tail_number": "N1",
        "origin": "EWR",
        "destination": "ORD",
        "departure_hour": 5,
        "scheduled_departure_utc": _local(datetime(2013, 1, 2, 10, 45, tzinfo=UTC)),
        "scheduled_departure_local": datetime(2013, 1, 2, 5, 45),  # noqa: DTZ001
        "actual_departure_utc": _local(datetime(2013, 1, 2, 11, 1, tzinfo=UTC)),
        "weather_hour_utc": _local(datetime(2013, 1, 2, 10, tzinfo=UTC)),
        "departure_delay_min": 16,
        "arrival_delay_min": 10,
        "air_time_min": 120,
        "distance_miles": 719,
        "cancelled": False,
        "reject_reason": None,
    }


def test_the_files_columns_are_those_of_the_schema(spark: SparkSession) -> None:
    usable = transforms.usable_flights(transforms.typed_flights(raw_flights(spark, {})))
    assert [(f.name, f.dataType) for f in usable.schema] == [(f.name, f.dataType) for f in FLIGHTS]


@pytest.mark.long
def test_summer_time_is_four_hours_behind_utc(spark: SparkSession) -> None:
    raw = raw_flights(spark, {"month": "7", "time_hour": "2013-07-02T09:00:00Z"})
    row = transforms.typed_flights(raw).collect()[0]
    assert row["reject_reason"] is None
    assert row["scheduled_departure_local"] == datetime(2013, 7, 2, 5, 45)  # noqa: DTZ001


@pytest.mark.long
def test_a_cancelled_flight_is_kept_with_null_delays(spark: SparkSession) -> None:
    absent = {"dep_time": "NA", "dep_delay": "NA", "arr_delay": "", "air_time": None, "tailnum": "NA"}
    row = transforms.typed_flights(raw_flights(spark, absent)).collect()[0]
    assert row["cancelled"] is True
    assert row["reject_reason"] is None
    for name in (
        "departure_delay_min",
        "arrival_delay_min",
        "actual_departure_utc",
        "tail_number",
        "air_time_min",
    ):
        assert row[name] is None


@pytest.mark.long
def test_a_row_that_cannot_be_used_says_why(spark: SparkSession) -> None:
    changes = [change for change, _ in UNUSABLE_ROWS]
    typed = transforms.typed_flights(raw_flights(spark, *changes, {"flight": "16"}))
    found = [row["reject_reason"] for row in transforms.rejected_flights(typed).collect()]
    assert sorted(found) == sorted(reason for _, reason in UNUSABLE_ROWS)
    usable = [row["flight_key"] for row in transforms.usable_flights(typed).collect()]
    assert usable == ["2013-01-02 EWR UA 16"]


@pytest.mark.long
def test_of_rows_with_one_key_one_stays_and_none_disappears(spark: SparkSession) -> None:
    raw = raw_flights(spark, {}, {}, {"dep_delay": "17"}, {"origin": "JFK"}, {"dest": "NA"})
    repeats = "repeats 2013-01-02 EWR UA 15"
    assert reasons(raw) == [None, None, "absent or unreadable: dest", repeats, repeats]


@pytest.mark.long
def test_a_broken_row_does_not_displace_a_good_one_with_its_key(spark: SparkSession) -> None:
    assert reasons(raw_flights(spark, {"distance": "NA"}, {})) == [None, "absent or unreadable: distance"]


@pytest.mark.long
def test_weather_is_one_row_per_airport_and_utc_hour(spark: SparkSession) -> None:
    names = RAW_WEATHER.names
    first = dict.fromkeys(names, "NA") | {
        "origin": "EWR", "hour": "1", "time_hour": "2013-11-03T05:00:00Z", "temp": "50.5", "wind_speed": "10",
        "precip": "0", "visib": "10",
    }  # fmt: skip
    rows = [
        first,
        first,
        {**first, "time_hour": "2013-11-03T06:00:00Z", "wind_speed": "1048.4"},
        {**first, "time_hour": "NA"},
    ]
    raw = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], RAW_WEATHER)
    expected = spark.createDataFrame(
        [("EWR", 5, 50.5, 10.0, 0.0, 10.0), ("EWR", 6, 50.5, None, 0.0, 10.0)],
        "origin string, hour int, temperature_f double, wind_mph double, precipitation_in double, "
        "visibility_miles double",
    )
    got = transforms.hourly_weather(raw).withColumn("hour", fn.hour("weather_hour_utc"))
    assert_same_rows(got.select(*expected.columns), expected)


def test_lookups_are_unique_even_where_the_file_repeats_itself(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [("UA", "United"), ("UA", "United Air"), ("NA", "None"), ("AA", "NA")], "carrier string, name string"
    )
    expected = spark.createDataFrame([("UA", "United"), ("AA", None)], "carrier string, airline_name string")
    assert_same_rows(transforms.named(raw, "carrier", key="carrier", name="airline_name"), expected)


@pytest.mark.long
def test_planes_have_numbers_or_null(spark: SparkSession) -> None:
    values = {"tailnum": "N1", "year": "NA", "manufacturer": "BOEING", "seats": "55"}
    names = RAW_PLANES.names
    raw = spark.createDataFrame([tuple(values.get(name, "NA") for name in names)], RAW_PLANES)
    expected = spark.createDataFrame(
        [("N1", None, "BOEING", 55)],
        "tail_number string, plane_year int, plane_maker string, plane_seats int",
    )
    assert_same_rows(transforms.known_planes(raw), expected)


def test_joining_keeps_every_flight_once_and_unmatched_columns_null(spark: SparkSession) -> None:
    flights = spark.createDataFrame(
        [(1, "UA", "N1"), (2, "ZZ", None), (3, "UA", "N9")], "id int, carrier string, tail string"
    )
    airlines = spark.createDataFrame([("UA", "United"), ("AA", "American")], "carrier string, name string")
    planes = spark.createDataFrame([("N1", 55)], "tail string, seats int")
    expected = spark.createDataFrame(
        [(1, "UA", "N1", "United", 55), (2, "ZZ", None, None, None), (3, "UA", "N9", "United", None)],
        "id int, carrier string, tail string, name string, seats int",
    )
    got = transforms.joined(flights, [(airlines, ["carrier"]), (planes, ["tail"])])
    assert_same_rows(got.select(*expected.columns), expected)


FLIGHTS_MEASURED = (
    "cancelled boolean, departure_delay_min int, arrival_delay_min int, carrier string, airline_name string, "
    "origin string, destination string, destination_name string, departure_hour int, "
    "visibility_miles double, precipitation_in double, wind_mph double"
)


def measured(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    rest = ("UA", None, "EWR", "ORD", "O'Hare", 5, 10.0, 0.0, None)
    return spark.createDataFrame([(*row, *rest[len(row) - 3 :]) for row in rows], FLIGHTS_MEASURED)


@pytest.mark.long
def test_delays_count_measure_and_leave_out_what_has_no_delay(spark: SparkSession) -> None:
    flights = measured(
        spark, (False, -4, -10), (False, 0, 15), (False, 15, 16), (False, 61, None), (True, None, None)
    )
    expected = spark.createDataFrame(
        [("all", "all", "All flights", 5, 1, 4, 3, 18.0, 7.5, 47.2, 0.25, 7.0, 15.0, 15.8, 1 / 3)],
        DELAYS,
    )
    assert_same_rows(transforms.delays_overall(flights), expected)


@pytest.mark.long
def test_a_group_without_departures_has_null_measures(spark: SparkSession) -> None:
    row = transforms.delays_by_hour(measured(spark, (True, None, None))).collect()[0].asDict()
    assert (row["key"], row["label"], row["flights"], row["cancelled"], row["departed"]) == (
        "05",
        "05:00",
        1,
        1,
        0,
    )
    assert {value for name, value in row.items() if name.endswith(("_min", "_share"))} == {None}


@pytest.mark.long
def test_keys_and_labels_of_carriers_and_routes(spark: SparkSession) -> None:
    flights = measured(
        spark, (False, 1, 1), (False, 1, 1, "AA", "American", "JFK", "SJU", None, 5, 1.0, 0.0, 1.0)
    )
    carriers = {row["key"]: row["label"] for row in transforms.delays_by_carrier(flights).collect()}
    routes = {row["key"]: row["label"] for row in transforms.delays_by_route(flights).collect()}
    assert carriers == {"UA": "UA", "AA": "American"}
    assert routes == {"EWR-ORD": "EWR → O'Hare", "JFK-SJU": "JFK → SJU"}


def test_each_flight_counts_once_per_weather_factor(spark: SparkSession) -> None:
    flight = (False, 1, 1, "UA", None, "EWR", "ORD", None, 5)
    flights = measured(spark, *((*flight, *weather) for *weather, _ in FACTORS))
    rows = transforms.delays_by_weather(flights).collect()
    assert sorted(row["key"] for row in rows) == sorted(key for *_, keys in FACTORS for key in keys)
    assert {row["flights"] for row in rows} == {1}
    assert all(row["label"].startswith(row["key"].split("/")[0] + ": ") for row in rows)


def assert_same_rows(got: DataFrame, expected: DataFrame) -> None:
    """Same columns, types and rows in any order, floats within 1e-9. PySpark's own needs an older pandas."""

    def key(row: Row) -> list[tuple[bool, Any]]:
        return [(value is None, value) for value in row if not isinstance(value, float)]

    assert [(f.name, f.dataType) for f in got.schema] == [(f.name, f.dataType) for f in expected.schema]
    rows, wanted = sorted(got.collect(), key=key), sorted(expected.collect(), key=key)
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        close = [pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for value in want]
        assert list(row) == close


def _local(instant: datetime) -> datetime:
    """PySpark returns instants as the wall clock of this machine, without a zone."""
    return instant.astimezone().replace(tzinfo=None)
