"""Plots as small SVG files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

WIDTH_INCHES: Final = 8.0
ROW_INCHES: Final = 2.4
SETTINGS: Final[Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "glidemq", "font.size": 9, "path.simplify_threshold": 1.0,
    "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


@contextmanager
def plot(file: Path, rows: int = 1, columns: int = 1, *, title: str = "") -> Iterator[list[Any]]:
    """The axes of a plot, row by row; it is written when the block has ended without an error."""
    import matplotlib as mpl  # noqa: PLC0415  slow to import, and only for those who want a plot

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    with mpl.rc_context(SETTINGS):
        size = (WIDTH_INCHES, ROW_INCHES * rows + 0.6)
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        if title:
            figure.suptitle(title)
        try:
            yield [one for row in axes for one in row]
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, metadata={"Date": None})
        finally:
            plt.close(figure)
