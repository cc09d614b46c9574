"""The style of the example pipelines' charts: colours, figures, titles of panels. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#1f2d3a"
QUIET: Final = "#6b7a88"
GRID: Final = "#e6ebef"
BAND: Final = "#c9dcea"
COOL: Final = "#3b7ea8"
WARM: Final = "#d9583b"
LEFT: Final = 0.025
MIDDLE: Final = 0.53
"""Where the titles of panels on the left and on the right begin, as shares of the image."""


def canvas() -> Figure:
    """An empty figure of 2100 by 1540 pixels that shares no state with those of other threads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(15, 11), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, title: str, subtitle: str) -> None:
    """Give a panel titles above it, and subdued lines and labels."""
    place = axes.get_position()
    left = LEFT if place.x0 < 0.5 else MIDDLE
    axes.figure.text(left, place.y1 + 0.033, title, fontsize=16, fontweight="bold", color=INK)
    axes.figure.text(left, place.y1 + 0.011, subtitle, fontsize=11.5, color=QUIET)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=11, labelcolor=INK)
