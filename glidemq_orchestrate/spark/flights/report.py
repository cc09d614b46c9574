"""The final report: one table, one chart, one short summary. Plain Python, no Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.charts import BAND, COOL, GRID, INK, LEFT, QUIET, WARM, canvas, dress
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

MIN_FLIGHTS: Final = 1_000
"""Keys with fewer flights are in the table, but not ranked in the summary: one bad day would decide."""

PANELS: Final = {
    "hour": (0.075, 0.535, 0.40, 0.31),
    "carrier": (0.645, 0.535, 0.335, 0.31),
    "route": (0.205, 0.045, 0.27, 0.36),
    "weather": (0.645, 0.045, 0.335, 0.36),
}
"""Left, bottom, width and height of each panel as shares of the image; its labels are to the left."""


def check_totals(rows: Sequence[Row], flights: int) -> None:
    """Check that no aggregate lost a flight: each section, and each weather factor, adds up to all flights.

    Raises:
        Unrecoverable: A section does not add up; the message shows both numbers.
    """
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        part = row["key"].split("/")[0] if row["section"] == "weather" else row["section"]
        totals[part] += row["flights"]
    if wrong := {part: total for part, total in totals.items() if total != flights}:
        shown = ", ".join(f"{part} has {total:,}" for part, total in wrong.items())
        raise Unrecoverable(f"the report does not add up to {flights:,} flights: {shown}")


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write ``report.parquet``: one file, one row per ``section`` and ``key``, columns as ``schemas.DELAYS``.

    Sections are ``all`` (one row), ``carrier``, ``route``, ``hour`` and ``weather``, in this order, keys
    ascending. Shares are 0 to 1, delays in minutes; a mean, quantile or share of no flights is null.
    """
    import pyarrow as pa  # noqa: PLC0415  only this step needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {"section": pa.string(), "key": pa.string(), "label": pa.string()}
    counts = {"flights", "cancelled", "departed", "arrived"}
    fields = [(name, kinds.get(name, pa.int64() if name in counts else pa.float64())) for name in rows[0]]
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(fields)), path)


def summary(rows: Sequence[Row]) -> list[Json]:
    """Pick eight rows worth reading: ``what``, ``which``, ``flights``, ``cancelled`` and three measures.

    ``late_percent`` is the share of departures more than 15 minutes late; ``median_min`` and ``p90_min`` are
    departure delays. Values are rounded to one decimal.
    """
    carriers, routes, hours, weather = (
        _large(_section(rows, section)) for section in ("carrier", "route", "hour", "weather")
    )
    picked = [
        ("all", rows[0]),
        ("most punctual carrier", min(carriers, key=_lateness)),
        ("least punctual carrier", max(carriers, key=_lateness)),
        ("most punctual hour", min(hours, key=_lateness)),
        ("least punctual hour", max(hours, key=_lateness)),
        ("busiest route", max(routes, key=lambda row: row["flights"])),
        ("least punctual route", max(routes, key=_lateness)),
        ("worst weather", max(weather, key=_lateness)),
    ]
    return [_punctuality(what, row) for what, row in picked]


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw the four sections as a PNG, 2100 by 1540 pixels, without using state shared between threads."""
    overall, figure = rows[0], canvas()
    panels = {section: figure.add_axes(place) for section, place in PANELS.items()}
    _draw_hours(panels["hour"], _section(rows, "hour"))
    _draw_carriers(panels["carrier"], _section(rows, "carrier"), overall)
    _draw_routes(panels["route"], _section(rows, "route"), overall)
    _draw_weather(panels["weather"], _section(rows, "weather"), overall)
    figure.text(
        LEFT, 0.962, f"Leaving New York, 2013: {overall['flights']:,} flights",
        fontsize=24, fontweight="bold", color=INK, va="center",
    )  # fmt: skip
    late = f"{_lateness(overall):.0%} of departures were more than 15 minutes late"
    figure.text(
        LEFT, 0.925, f"{late}, {overall['cancelled']:,} flights were cancelled. Airports EWR, JFK and LGA.",
        fontsize=13, color=QUIET, va="center",
    )  # fmt: skip
    figure.savefig(path)


def _draw_hours(axes: Axes, rows: Sequence[Row]) -> None:
    known = [row for row in rows if row["departed"]]
    hours = [int(row["key"]) for row in known]
    median = [row["departure_delay_p50_min"] for row in known]
    worst = [row["departure_delay_p90_min"] for row in known]
    axes.fill_between(hours, median, worst, color=BAND, label="from the median to the worst tenth")
    axes.plot(
        hours, [row["departure_delay_mean_min"] for row in known], color=WARM, linewidth=2.8, label="mean"
    )
    axes.plot(hours, median, color=COOL, linewidth=2.2, label="median")
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.set_xticks(hours[::2], [f"{hour}:00" for hour in hours[::2]])
    axes.yaxis.set_major_formatter("{x:.0f} min")
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, loc="upper left", fontsize=11, labelcolor=INK)
    dress(axes, "Delays pile up through the day", "departure delay by planned hour of departure")


def _draw_carriers(axes: Axes, rows: Sequence[Row], overall: Row) -> None:
    ranked = sorted((row for row in rows if row["departed"]), key=_lateness)
    names = [_short(row["label"]) for row in ranked]
    _bars(axes, names, ranked, _lateness(overall))
    dress(axes, "Carriers", "departures more than 15 minutes late")


def _draw_routes(axes: Axes, rows: Sequence[Row], overall: Row) -> None:
    known = [row for row in rows if row["departed"]]
    ranked = sorted(_large(known), key=_lateness)[-14:]
    _bars(axes, [_short(row["label"]) for row in ranked], ranked, _lateness(overall))
    dress(
        axes, "The least punctual routes", f"late departures on routes with {MIN_FLIGHTS:,} flights or more"
    )


def _draw_weather(axes: Axes, rows: Sequence[Row], overall: Row) -> None:
    known = [row for row in rows if row["departed"] and not row["key"].endswith("no record")]
    _bars(axes, [row["label"] for row in reversed(known)], list(reversed(known)), _lateness(overall))
    factors = [row["key"].split("/")[0] for row in reversed(known)]
    for place in range(1, len(factors)):
        if factors[place] != factors[place - 1]:
            axes.axhline(place - 0.5, color=QUIET, linewidth=0.8, linestyle=(0, (2, 4)))
    dress(axes, "Weather", "late departures by the weather at the airport in that hour")


def _bars(axes: Axes, labels: Sequence[str], rows: Sequence[Row], average: float) -> None:
    """Draw one bar per row, from bottom to top; bars above the average are warm, and a line marks it."""
    shares = [_lateness(row) for row in rows]
    places = range(len(rows))
    colours = [WARM if share > average else COOL for share in shares]
    axes.barh(places, shares, color=colours, height=0.74)
    widest = max([average, *shares])
    for place, share in zip(places, shares, strict=True):
        inside = share > 0.15 * widest
        axes.annotate(
            f"{share:.0%}", (share, place), xytext=(-8 if inside else 6, 0), textcoords="offset points",
            ha="right" if inside else "left", va="center_baseline", fontsize=10.5,
            fontweight="bold", color="white" if inside else INK,
        )  # fmt: skip
    axes.set_yticks(places, labels)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlim(0, 1.02 * widest)
    axes.axvline(average, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    axes.annotate(
        f"all flights {average:.0%}", (average, 0), xycoords=("data", "axes fraction"),
        xytext=(0, -6), textcoords="offset points", ha="center", va="top", fontsize=10.5, color=QUIET,
    )  # fmt: skip
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _short(label: str) -> str:
    for ending in (".", " Inc", " Co", " Corporation", " Intl", " Natl"):
        label = label.removesuffix(ending)
    return label


def _large(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows with enough flights to be compared, or all when none has."""
    return [row for row in rows if row["flights"] >= MIN_FLIGHTS] or rows


def _section(rows: Sequence[Row], section: str) -> list[Row]:
    return [row for row in rows if row["section"] == section]


def _lateness(row: Row) -> float:
    return row["departed_late_share"] or 0.0


def _punctuality(what: str, row: Row) -> Json:
    share = row["departed_late_share"]
    return {
        "what": what,
        "which": row["label"],
        "flights": row["flights"],
        "cancelled": row["cancelled"],
        "late_percent": None if share is None else round(100 * share, 1),
        "median_min": _rounded(row["departure_delay_p50_min"]),
        "p90_min": _rounded(row["departure_delay_p90_min"]),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
