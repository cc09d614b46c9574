"""Whether the files of the imported code have changed since they were imported."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Final

_INSTALLED: Final = tuple(
    os.path.join(sysconfig.get_path(name), "")  # noqa: PTH118  compared as texts, a thousand at once
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class Sources:
    """The imported files outside of the Python installation, which are those that are edited."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def note(self) -> None:
        """Note what has been imported; what was noted before stays as it was."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self._known and not file.startswith(_INSTALLED):
                self._known[file] = _changed_at(file)

    def have_changed(self) -> bool:
        """Whether one of them is another now, or has gone."""
        return any(_changed_at(file) != at for file, at in self._known.items())


def _changed_at(file: str) -> int | None:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116  for each step
    except OSError:
        return None
