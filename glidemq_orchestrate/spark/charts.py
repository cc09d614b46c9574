"""The colours of our charts, and an empty figure. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK: Final = "#1f2d3a"
QUIET: Final = "#6b7a88"
GRID: Final = "#e6ebef"
BAND: Final = "#c9dcea"
COOL: Final = "#3b7ea8"
WARM: Final = "#d9583b"


def canvas() -> Figure:
    """An empty figure of 2100 by 1540 pixels that shares no state with those of other threads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(15, 11), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    return figure
