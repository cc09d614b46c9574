"""The two server-side function libraries, assembled by ``lua/build.py`` and shipped with the package."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

GLIDEMQ: Final = "glidemq"
ORCHESTRATE: Final = "glidemq_orchestrate"


class Library(NamedTuple):
    """One library: what it is called on the server, its version, its fingerprint and its source."""

    name: str
    version: str
    sha256: str
    source: str


@cache
def library(name: str) -> Library:
    """The library of this name as this package ships it."""
    folder = Path(__file__).parent
    about = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))[name]
    source = (folder / f"{name}.lua").read_text(encoding="utf-8")
    return Library(name, about["version"], about["sha256"], source)
