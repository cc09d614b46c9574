"""What a case must never do, as an error; two violations with the same signature have one cause."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

import glidemq_orchestrate

PACKAGE: Final = str(Path(glidemq_orchestrate.__file__).parent)


class Violation(AssertionError):
    """A case broke an invariant; ``signature`` says which, and where in the package."""

    def __init__(self, what: str, signature: str) -> None:
        self.signature = signature
        super().__init__(what)


def undocumented(exc: BaseException) -> Violation:
    """For an error that no docstring mentions."""
    what = f"{type(exc).__name__}: {str(exc)[:300]}"
    return Violation(
        f"undocumented error {what}\n  at {place_of(exc)}", f"{type(exc).__name__} {place_of(exc)}"
    )


def place_of(exc: BaseException) -> str:
    """The innermost line of the package in a traceback."""
    frames = traceback.extract_tb(exc.__traceback__)
    inner = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames[-1:]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in inner[-1:])
