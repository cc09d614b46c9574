"""The columns of the pipeline's files. Raw CSV is read as text: no unreadable value silently becomes null."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (  # noqa: TID253  loaded by Spark steps only
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

ABSENT: Final = "NA"
"""How the CSV files write an absent value."""


def _text(names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names.split()])


def _table(columns: dict[str, DataType], *, required: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, kind, name not in required) for name, kind in columns.items()])


RAW_FLIGHTS: Final = _text(
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight "
    "tailnum origin dest air_time distance hour minute time_hour"
)
RAW_WEATHER: Final = _text(
    "origin year month day hour temp dewp humid wind_dir wind_speed wind_gust precip pressure visib time_hour"
)
RAW_PLANES: Final = _text("tailnum year type manufacturer model engines seats speed engine")
RAW_AIRLINES: Final = _text("carrier name")
RAW_AIRPORTS: Final = _text("faa name lat lon alt tz dst tzone")

FLIGHTS: Final = _table(
    {
        "flight_key": StringType(),
        "flight_date": DateType(),
        "month": IntegerType(),
        "carrier": StringType(),
        "flight_number": IntegerType(),
        "tail_number": StringType(),
        "origin": StringType(),
        "destination": StringType(),
        "departure_hour": IntegerType(),
        "scheduled_departure_utc": TimestampType(),
        "scheduled_departure_local": TimestampNTZType(),
        "actual_departure_utc": TimestampType(),
        "weather_hour_utc": TimestampType(),
        "departure_delay_min": IntegerType(),
        "arrival_delay_min": IntegerType(),
        "air_time_min": IntegerType(),
        "distance_miles": IntegerType(),
        "cancelled": BooleanType(),
    },
    required=(
        *("flight_key", "flight_date", "month", "carrier", "flight_number", "origin", "destination"),
        *("departure_hour", "scheduled_departure_utc", "scheduled_departure_local", "weather_hour_utc"),
        *("distance_miles", "cancelled"),
    ),
)
"""One row per flight that was planned; the transforms document each column.

``required`` columns are never null in files, though Parquet itself marks every column as nullable.
"""

DELAYS: Final = _table(
    {
        "section": StringType(),
        "key": StringType(),
        "label": StringType(),
        "flights": LongType(),
        "cancelled": LongType(),
        "departed": LongType(),
        "arrived": LongType(),
        "departure_delay_mean_min": DoubleType(),
        "departure_delay_p50_min": DoubleType(),
        "departure_delay_p90_min": DoubleType(),
        "departed_late_share": DoubleType(),
        "arrival_delay_mean_min": DoubleType(),
        "arrival_delay_p50_min": DoubleType(),
        "arrival_delay_p90_min": DoubleType(),
        "arrived_late_share": DoubleType(),
    },
    required=("section", "key", "label", "flights", "cancelled", "departed", "arrived"),
)
"""One row per section and key; also the columns of ``report.parquet``. See ``transforms.delays``."""
