"""Pure DataFrame to DataFrame functions of the flights pipeline: no files, no session, no clock.

Units: minutes, miles, miles per hour, inches, degrees Fahrenheit. Instants are UTC; ``..._local`` is the
wall clock of New York, without a zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window  # noqa: TID253
from pyspark.sql import functions as fn  # noqa: TID253
from pyspark.sql.types import StringType, StructField, StructType  # noqa: TID253

NEW_YORK: Final = "America/New_York"
LATE_AFTER_MIN: Final = 15
FASTEST_WIND_MPH: Final = 150.0
REQUIRED_TEXT: Final = ("carrier", "origin", "dest")
REQUIRED_NUMBERS: Final = ("year", "month", "day", "sched_dep_time", "flight", "distance")
OPTIONAL_NUMBERS: Final = ("dep_delay", "arr_delay", "air_time")

WEATHER_FACTORS: Final = (
    (
        "visibility",
        "visibility_miles",
        ((">= 10", "10 miles"), (">= 5", "5 to 10 miles"), (">= 1", "1 to 5 miles"), ("< 1", "under 1 mile")),
    ),
    (
        "precipitation",
        "precipitation_in",
        (("= 0", "none"), ("< 0.05", "light"), (">= 0.05", "heavy")),
    ),
    ("wind", "wind_mph", (("< 10", "under 10 mph"), ("< 20", "10 to 20 mph"), (">= 20", "20 mph and more"))),
)
"""Factor, its column, and its buckets from good to bad: the first condition that is true applies."""


def typed_flights(raw: DataFrame) -> DataFrame:
    """Give raw flights types and derived columns, and mark the rows that cannot be used.

    One row out per row in. The columns of ``FLIGHTS`` plus ``reject_reason``:

    * ``flight_key``: date, origin, carrier and flight number, such as ``2013-01-01 EWR UA 1545``; a flight
      number leaves an airport once a day.
    * ``departure_hour``: 0 to 23, planned, New York time. ``weather_hour_utc``: the start of that hour.
    * ``actual_departure_utc``: planned time plus departure delay.
    * ``cancelled``: no departure time was recorded. Cancelled flights stay; their delays are null. A diverted
      flight departed and has no arrival delay.
    * ``reject_reason``: null for a usable row. Otherwise the columns that are absent or unreadable, or that
      the planned hour does not match its UTC time, or ``repeats KEY`` for all but one of the rows with the
      same key.

    Args:
        raw: The columns of ``RAW_FLIGHTS``, all text; ``NA``, empty and null all mean absent.
    """
    rows = raw.select(*(_present(name).alias(name) for name in raw.columns))
    minute_of_day = _number(rows, "sched_dep_time") % 100
    hour_utc = fn.try_to_timestamp(rows["time_hour"], fn.lit("yyyy-MM-dd'T'HH:mm:ssX"))
    planned = fn.timestamp_add("MINUTE", minute_of_day, hour_utc)
    date = fn.concat("year", fn.lit("-"), "month", fn.lit("-"), "day").try_cast("date")
    typed = rows.select(
        *_identity(rows, date),
        fn.floor(_number(rows, "sched_dep_time") / 100).cast("int").alias("departure_hour"),
        planned.alias("scheduled_departure_utc"),
        fn.from_utc_timestamp(planned, NEW_YORK).cast("timestamp_ntz").alias("scheduled_departure_local"),
        fn.timestamp_add("MINUTE", _number(rows, "dep_delay"), planned).alias("actual_departure_utc"),
        hour_utc.alias("weather_hour_utc"),
        _number(rows, "dep_delay").alias("departure_delay_min"),
        _number(rows, "arr_delay").alias("arrival_delay_min"),
        _number(rows, "air_time").alias("air_time_min"),
        _number(rows, "distance").alias("distance_miles"),
        rows["dep_time"].isNull().alias("cancelled"),
        _unreadable(rows, hour_utc, date).alias("reject_reason"),
    )
    return _repeats_rejected(typed)


def usable_flights(typed: DataFrame) -> DataFrame:
    """Keep the rows without a ``reject_reason``: the columns of ``FLIGHTS``, one row per ``flight_key``."""
    return typed.where(fn.col("reject_reason").isNull()).select(*FLIGHTS.fieldNames())


def rejected_flights(typed: DataFrame) -> DataFrame:
    """Keep the rows with a ``reject_reason``, all columns."""
    return typed.where(fn.col("reject_reason").isNotNull())


def hourly_weather(raw: DataFrame) -> DataFrame:
    """Type the raw weather and make it joinable: one row per ``origin`` and ``weather_hour_utc``.

    Local time would not do as a key: on the night when clocks go back, 01:00 occurs twice at each airport. Of
    several rows with the same key the smallest is kept, so a repetition is harmless. Wind above 150 mph,
    the reading of a broken sensor, becomes null, and so does what cannot be read.

    Columns: ``origin``, ``weather_hour_utc``, ``temperature_f``, ``wind_mph``, ``precipitation_in``,
        ``visibility_miles``.
    """
    rows = raw.select(*(_present(name).alias(name) for name in raw.columns))
    wind = rows["wind_speed"].try_cast("double")
    typed = rows.select(
        rows["origin"],
        fn.try_to_timestamp(rows["time_hour"], fn.lit("yyyy-MM-dd'T'HH:mm:ssX")).alias("weather_hour_utc"),
        rows["temp"].try_cast("double").alias("temperature_f"),
        fn.when(wind <= FASTEST_WIND_MPH, wind).alias("wind_mph"),
        rows["precip"].try_cast("double").alias("precipitation_in"),
        rows["visib"].try_cast("double").alias("visibility_miles"),
    )
    return _one_per(typed, ["origin", "weather_hour_utc"])


def known_planes(raw: DataFrame) -> DataFrame:
    """One row per ``tail_number``: ``plane_year`` (null when unknown), ``plane_maker``, ``plane_seats``."""
    rows = raw.select(*(_present(name).alias(name) for name in raw.columns))
    typed = rows.select(
        rows["tailnum"].alias("tail_number"),
        _number(rows, "year").alias("plane_year"),
        rows["manufacturer"].alias("plane_maker"),
        _number(rows, "seats").alias("plane_seats"),
    )
    return _one_per(typed, ["tail_number"])


def named(raw: DataFrame, code: str, *, key: str, name: str) -> DataFrame:
    """Turn a raw list of codes into a lookup: one row per ``key`` (the column ``code``) with its ``name``."""
    return _one_per(raw.select(_present(code).alias(key), _present("name").alias(name)), [key])


def joined(flights: DataFrame, lookups: Sequence[tuple[DataFrame, Sequence[str]]]) -> DataFrame:
    """Left-join lookups to flights. One row per flight, as before; columns without a match are null.

    Args:
        flights: The columns of ``FLIGHTS``.
        lookups: Frames with the columns to join on, in which they must be unique; small enough to broadcast.
    """
    for lookup, keys in lookups:
        flights = flights.join(fn.broadcast(lookup), list(keys), "left")
    return flights


def delays(flights: DataFrame, section: str, *, key: Column, label: Column) -> DataFrame:
    """Measure delays per key: the columns of ``DELAYS``, one row per ``key``, in no order.

    ``flights`` counts rows, ``cancelled`` those that never left, ``departed`` and ``arrived`` those with a
    departure or arrival delay; means, quantiles and shares are taken over the latter two, and are null where
    there is none. Negative delays (early) count as they are. ``p50`` and ``p90`` are exact quantiles with
    linear interpolation between neighbours. ``..._late_share`` is the share, 0 to 1, of more than 15 minutes.
    """
    metrics = [fn.count(fn.lit(1)).alias("flights"), fn.count_if("cancelled").alias("cancelled")]
    for done, delay in (("departed", "departure_delay"), ("arrived", "arrival_delay")):
        minutes = fn.col(f"{delay}_min")
        metrics += [
            fn.count(minutes).alias(done),
            fn.avg(minutes).alias(f"{delay}_mean_min"),
            fn.percentile(minutes, 0.5).alias(f"{delay}_p50_min"),
            fn.percentile(minutes, 0.9).alias(f"{delay}_p90_min"),
            fn.avg((minutes > LATE_AFTER_MIN).cast("int")).alias(f"{done}_late_share"),
        ]
    grouped = flights.groupBy(key.alias("key"), label.alias("label")).agg(*metrics)
    return grouped.withColumn("section", fn.lit(section)).select(*DELAYS.fieldNames())


def delays_overall(flights: DataFrame) -> DataFrame:
    """``delays`` of all flights together: one row, key ``all``."""
    return delays(flights, "all", key=fn.lit("all"), label=fn.lit("All flights"))


def delays_by_carrier(flights: DataFrame) -> DataFrame:
    """``delays`` per carrier: the key is its code, the label its name, or its code where that is unknown."""
    return delays(flights, "carrier", key=fn.col("carrier"), label=fn.coalesce("airline_name", "carrier"))


def delays_by_route(flights: DataFrame) -> DataFrame:
    """``delays`` per origin and destination: key such as ``EWR-ORD``, label ``EWR → Chicago Ohare Intl``."""
    place = fn.coalesce("destination_name", "destination")
    key = fn.concat_ws("-", "origin", "destination")
    return delays(flights, "route", key=key, label=fn.concat_ws(" → ", "origin", place))


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """``delays`` per planned hour of departure in New York: the key is ``05``, the label ``05:00``."""
    key = fn.lpad(fn.col("departure_hour").cast("string"), 2, "0")
    return delays(flights, "hour", key=key, label=fn.concat(key, fn.lit(":00")))


def delays_by_weather(flights: DataFrame) -> DataFrame:
    """``delays`` per bucket of visibility, precipitation and wind, at the hour and airport of departure.

    Each flight counts once in each of the three; without a record it counts as ``no record``. The key is such
    as ``visibility/2 1 to 5 miles``, so that keys sort from good weather to bad; the label leaves the number
    out.
    """
    bucket = fn.explode(fn.array(*(_bucket(*factor) for factor in WEATHER_FACTORS)))
    return delays(
        flights.withColumn("bucket", bucket),
        "weather",
        key=fn.col("bucket.key"),
        label=fn.col("bucket.label"),
    )


def _bucket(factor: str, column: str, buckets: Sequence[tuple[str, str]]) -> Column:
    def entry(number: int, label: str) -> Column:
        return fn.struct(
            fn.lit(f"{factor}/{number} {label}").alias("key"), fn.lit(f"{factor}: {label}").alias("label")
        )

    (first, label), *others = buckets
    chosen = fn.when(fn.expr(f"{column} {first}"), entry(0, label))
    for number, (condition, text) in enumerate(others, start=1):
        chosen = chosen.when(fn.expr(f"{column} {condition}"), entry(number, text))
    return chosen.otherwise(entry(9, "no record"))


def _present(name: str) -> Column:
    text = fn.trim(fn.col(name))
    return fn.when((text != ABSENT) & (text != ""), text)


def _number(rows: DataFrame, name: str) -> Column:
    return rows[name].try_cast("int")


def _identity(rows: DataFrame, date: Column) -> list[Column]:
    """What identifies a flight: the columns of ``FLIGHTS`` up to ``destination``."""
    return [
        fn.concat_ws(" ", date, rows["origin"], rows["carrier"], rows["flight"]).alias("flight_key"),
        date.alias("flight_date"),
        _number(rows, "month").alias("month"),
        rows["carrier"],
        _number(rows, "flight").alias("flight_number"),
        rows["tailnum"].alias("tail_number"),
        rows["origin"],
        rows["dest"].alias("destination"),
    ]


def _unreadable(rows: DataFrame, hour_utc: Column, date: Column) -> Column:
    """Why a row cannot be used; null when it can."""
    numbers = {name: _number(rows, name) for name in (*REQUIRED_NUMBERS, *OPTIONAL_NUMBERS)}
    faults = [fn.when(rows[name].isNull(), name) for name in REQUIRED_TEXT]
    faults += [fn.when(numbers[name].isNull(), name) for name in REQUIRED_NUMBERS]
    faults += [fn.when(rows[name].isNotNull() & numbers[name].isNull(), name) for name in OPTIONAL_NUMBERS]
    faults += [fn.when(hour_utc.isNull(), "time_hour"), fn.when(date.isNull(), "date")]
    named_faults = fn.concat_ws(", ", *faults)
    local_hour = fn.hour(fn.from_utc_timestamp(hour_utc, NEW_YORK))
    agrees = local_hour == fn.floor(numbers["sched_dep_time"] / 100)
    unreadable = fn.concat(fn.lit("absent or unreadable: "), named_faults)
    return fn.when(named_faults != "", unreadable).when(
        ~agrees, "time_hour is not the hour of sched_dep_time"
    )


def _repeats_rejected(typed: DataFrame) -> DataFrame:
    """The rows, all but the first of each flight key rejected as repeats."""
    others = [name for name in typed.columns if name != "reject_reason"]
    same_key = Window.partitionBy("flight_key", fn.col("reject_reason").isNull()).orderBy(*others)
    repeats = fn.col("reject_reason").isNull() & (fn.col("place") > 1)
    reason = fn.when(repeats, fn.concat(fn.lit("repeats "), "flight_key")).otherwise(fn.col("reject_reason"))
    return (
        typed.withColumn("place", fn.row_number().over(same_key))
        .withColumn("reject_reason", reason)
        .drop("place")
    )


def _one_per(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key: the smallest of its rows."""
    others = [name for name in frame.columns if name not in keys]
    smallest = fn.min(fn.struct(*others)).alias("row")
    known = frame.dropna(subset=list(keys))
    return known.groupBy(*keys).agg(smallest).select(*keys, "row.*")


ABSENT: Final = "NA"
"""How the CSV files write an absent value."""


def _text(names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names.split()])


def _table(columns: str) -> StructType:
    """A schema from lines with a name and a type; ``?`` follows the types of columns that may be null."""
    schema = StructType()
    for line in columns.split("\n")[1:-1]:
        name, kind = line.split()
        schema.add(name, kind.rstrip("?"), kind.endswith("?"))
    return schema


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

FLIGHTS: Final = _table("""
flight_key string
flight_date date
month integer
carrier string
flight_number integer
tail_number string?
origin string
destination string
departure_hour integer
scheduled_departure_utc timestamp
scheduled_departure_local timestamp_ntz
actual_departure_utc timestamp?
weather_hour_utc timestamp
departure_delay_min integer?
arrival_delay_min integer?
air_time_min integer?
distance_miles integer
cancelled boolean
""")
"""One row per flight that was planned; the transforms document each column.

Columns without ``?`` are never null in files, though Parquet itself marks every column as nullable.
"""

DELAYS: Final = _table("""
section string
key string
label string
flights long
cancelled long
departed long
arrived long
departure_delay_mean_min double?
departure_delay_p50_min double?
departure_delay_p90_min double?
departed_late_share double?
arrival_delay_mean_min double?
arrival_delay_p50_min double?
arrival_delay_p90_min double?
arrived_late_share double?
""")
"""One row per section and key; also the columns of ``report.parquet``. See ``transforms.delays``."""
