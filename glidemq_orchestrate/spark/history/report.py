"""The chart of the history, and its summary. Plain Python, no Spark."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.charts import BAND, COOL, GRID, INK, LEFT, QUIET, WARM, canvas, dress
from glidemq_orchestrate.wire.codec import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

MAX_BARS: Final = 12
LABEL_CHARACTERS: Final = 34
PANELS: Final = {
    "steps": (0.22, 0.53, 0.27, 0.30),
    "days": (0.58, 0.53, 0.39, 0.30),
    "path": (0.22, 0.05, 0.27, 0.34),
    "retries": (0.76, 0.05, 0.21, 0.34),
}
"""Left, bottom, width and height of each panel as shares of the image; its labels are to the left."""


def summary(tables: Tables) -> dict[str, Json]:
    """A few numbers: ``nodes``, ``failed``, ``retried``, ``run_total_s``, and the worst of each table.

    ``nodes`` counts nodes that ran and ended, or failed without having run; ``failed`` counts those that
    failed permanently, not because of other nodes (``transforms.timed``). ``slowest_step`` has the largest
    total run time, ``slowest_node`` the node that ran longest, ``commonest_cause`` the cause of the most
    retries and failures, ``longest_flow`` the flow that took longest, with the node on its critical path that
    took most of it. Null where there is none. Seconds have one decimal.
    """
    rows, path = tables["durations"], tables["path"]
    steps = _by_step(rows)
    worst = max(path, key=lambda row: row["wait_s"] + row["run_s"], default=None)
    node = next(iter(tables["slowest"]), None)
    cause = next(iter(tables["retries"]), None)
    return {
        "nodes": sum(row["nodes"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "retried": sum(row["retried"] for row in rows),
        "run_total_s": round(sum(row["run_total_s"] for row in rows), 1),
        "slowest_step": next(({"step": name, "run_total_s": round(s[0], 1)} for name, s in steps), None),
        "slowest_node": node
        and {"flow_id": node["flow_id"], "node": node["node"], "run_s": round(node["run_s"], 1)},
        "commonest_cause": cause and {name: cause[name] for name in ("step", "cause", "nodes")},
        "longest_flow": worst
        and {
            "flow_id": worst["flow_id"],
            "flow_s": round(worst["flow_s"], 1),
            "node": worst["node"],
            "wait_s": round(worst["wait_s"], 1),
            "run_s": round(worst["run_s"], 1),
        },
    }


def write_chart(tables: Tables, days: int, path: Path) -> None:
    """Draw the four panels as a PNG, 2100 by 1540 pixels: steps, days, the longest flow, and causes."""
    figure = canvas()
    panels = {name: figure.add_axes(place) for name, place in PANELS.items()}
    _draw_steps(panels["steps"], tables["durations"])
    _draw_days(panels["days"], tables["durations"])
    _draw_path(panels["path"], tables["path"])
    _draw_retries(panels["retries"], tables["retries"])
    nodes = sum(row["nodes"] for row in tables["durations"])
    failed = sum(row["failed"] for row in tables["durations"])
    figure.text(
        0.025, 0.962, f"{nodes:,} nodes ended", fontsize=24, fontweight="bold", color=INK, va="center"
    )
    subtitle = f"in the flows of the last {days} days; {failed:,} failed permanently"
    figure.text(LEFT, 0.925, subtitle, fontsize=13, color=QUIET, va="center")
    figure.savefig(path)


def _draw_steps(axes: Axes, rows: Sequence[Row]) -> None:
    ranked = _by_step(rows)[:MAX_BARS][::-1]
    places = range(len(ranked))
    axes.barh(places, [seconds[1] for _, seconds in ranked], color=BAND, height=0.74, label="waiting")
    axes.barh(
        places,
        [seconds[2] for _, seconds in ranked],
        left=[seconds[1] for _, seconds in ranked],
        color=COOL, height=0.74, label="running",
    )  # fmt: skip
    _rows(axes, [_label(name) for name, _ in ranked], MAX_BARS)
    if ranked:
        axes.legend(frameon=False, loc="lower right", fontsize=11, labelcolor=INK)
    dress(axes, "What takes the time", "p90 of waiting and running, seconds; the worst day of each step")


def _draw_days(axes: Axes, rows: Sequence[Row]) -> None:
    worst: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        found = worst[row["day"]]
        found[0] = max(found[0], row["wait_p50_s"])
        found[1] = max(found[1], row["wait_p90_s"])
    known = sorted(worst)
    labels = [f"{day:%d %b}" for day in known]
    for place, (name, colour) in enumerate((("median", COOL), ("p90", WARM))):
        found = [worst[day][place] for day in known]
        axes.plot(labels, found, color=colour, marker="o", label=name, clip_on=False, zorder=3)
    axes.set_ylim(0, 1.08 * max((found[1] for found in worst.values()), default=0.0) or 1.0)
    step = max(1, len(labels) // 8)
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    if known:
        axes.legend(frameon=False, loc="best", fontsize=11, labelcolor=INK)
    axes.grid(axis="y", color=GRID)
    dress(axes, "Waiting for a worker", "seconds, of the step that waited longest, by day")


def _draw_path(axes: Axes, path: Sequence[Row]) -> None:
    shown = sorted(path, key=lambda row: row["wait_s"] + row["run_s"])[-MAX_BARS:]
    ranked = sorted(shown, key=lambda row: -row["place"])
    places, begins = range(len(ranked)), [row["begins_s"] for row in ranked]
    axes.barh(places, [row["wait_s"] for row in ranked], left=begins, color=BAND, height=0.74)
    starts = [row["begins_s"] + row["wait_s"] for row in ranked]
    axes.barh(places, [row["run_s"] for row in ranked], left=starts, color=WARM, height=0.74)
    axes.set_xlim(left=0)
    _rows(axes, [_label(row["node"]) for row in ranked], MAX_BARS)
    flow = f"flow {_label(path[0]['flow_id'])}: seconds since its submission" if path else "no flow has ended"
    dress(axes, "The critical path of the longest flow", flow)


def _draw_retries(axes: Axes, rows: Sequence[Row]) -> None:
    ranked = list(rows)[: MAX_BARS // 2][::-1]
    places = range(len(ranked))
    axes.barh(places, [row["nodes"] for row in ranked], color=COOL, height=0.6)
    labels = [f"{_label(row['queue'])}: {_label(row['step'])}\n{_label(row['cause'])}" for row in ranked]
    _rows(axes, labels, MAX_BARS // 2)
    dress(axes, "Why nodes ran again or failed", "nodes by cause" if ranked else "none did")


def _by_step(rows: Sequence[Row]) -> list[tuple[str, tuple[float, float, float]]]:
    """Steps with their total run time, and the p90 of waiting and running on their worst day."""
    found: dict[str, tuple[float, float, float]] = {}
    for row in rows:
        total, wait, run = found.get(row["step"], (0.0, 0.0, 0.0))
        found[row["step"]] = (
            total + row["run_total_s"], max(wait, row["wait_p90_s"]), max(run, row["run_p90_s"] or 0.0),
        )  # fmt: skip
    return sorted(found.items(), key=lambda item: (-item[1][0], item[0]))


def _rows(axes: Axes, labels: Sequence[str], max_bars: int) -> None:
    """Label the bars from bottom to top; few bars are as thick as many."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - max_bars - 0.6, len(labels) - 0.4)


def _label(text: str) -> str:
    return textwrap.shorten(text, LABEL_CHARACTERS, placeholder="…") or text[:LABEL_CHARACTERS]
