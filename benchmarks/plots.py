"""Plots as small SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Final

WIDTH_INCHES: Final = 8.0
ROW_INCHES: Final = 2.4
SETTINGS: Final[Any] = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "svg.hashsalt": "glidemq", "font.size": 9,
    "path.simplify_threshold": 1.0,
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
            drawn = StringIO()
            figure.savefig(drawn, metadata={"Date": None})
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(small(drawn.getvalue()))
        finally:
            plt.close(figure)


def small(svg: str) -> str:
    """The same plot with coordinates to a tenth of a point, and without indentation."""
    tags = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), svg)
    return re.sub(r"\n\s+", "\n", tags)
