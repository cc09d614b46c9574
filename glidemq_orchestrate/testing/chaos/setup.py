"""The settings of a campaign for its processes: a file in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from glidemq_orchestrate.testing.chaos.strikes import Strike

VARIABLE: Final = "GLIDEMQ_CHAOS"
"""The environment variable with the folder: handlers with ``process=True`` inherit it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the workers serve, and the strikes of each flow by its id.

    Attributes:
        allow_import: If empty, the packages of ``apps``.
        salt: The salt of the digests in the ledger, so that values cannot be guessed from them.
    """

    url: str
    queues: Sequence[str]
    apps: Sequence[str]
    allow_import: Sequence[str]
    effects: Sequence[str]
    concurrency: int
    lease_seconds: float
    salt: str
    strikes: Mapping[str, Sequence[Strike]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file; readers get the old or the new one."""
        scratch = folder / "setup.tmp"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(folder / "setup.json")

    @classmethod
    def read(cls, folder: Path) -> Setup:
        """Read the file."""
        fields = json.loads((folder / "setup.json").read_text())
        strikes = {
            flow: [Strike.from_json(strike) for strike in each] for flow, each in fields["strikes"].items()
        }
        return cls(**{**fields, "strikes": strikes})


def ledger_of(folder: Path) -> Path:
    """The file of the ledger."""
    return folder / "ledger.jsonl"


def struck_of(folder: Path) -> Path:
    """The folder with a file for each strike that has happened."""
    return folder / "struck"
