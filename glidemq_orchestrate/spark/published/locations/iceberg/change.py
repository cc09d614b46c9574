"""The change that an accepted attempt makes to a table, as stored in the summary of its snapshot. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from glidemq_orchestrate.spark.published.locations.version import Version, epoch_of

ATTEMPT: Final = "glidemq.attempt"
REPLACES: Final = "glidemq.replaces"
PARTITIONS: Final = "glidemq.partitions"


@dataclass(frozen=True, slots=True)
class Change:
    """One attempt.

    Attributes:
        name: The name of the attempt; see ``version.name_of``.
        replaces: ``all`` rows, those of the same ``partitions``, or ``nothing``.
        partitions: The folders that it has written; None if the table has no partitions.
        spared: Partitions that it does not replace, because later attempts have.
    """

    name: str
    replaces: str
    partitions: tuple[str, ...] | None
    spared: tuple[str, ...] = ()

    @classmethod
    def of(cls, version: Version) -> Self:
        """The change of a version."""
        replaces = "nothing" if version.adds else "all" if version.replaces_all else "partitions"
        return cls(version.name, replaces, version.partitions)

    @property
    def epoch(self) -> int:
        """The epoch of the attempt."""
        return epoch_of(self.name) or 0

    def summary(self) -> dict[str, str]:
        """The properties of its snapshot; ``read`` reads them."""
        parts = {} if self.partitions is None else {PARTITIONS: json.dumps(self.partitions)}
        return {ATTEMPT: self.name, REPLACES: self.replaces, **parts}

    @classmethod
    def read(cls, summary: Mapping[str, str]) -> Self | None:
        """The change that made a snapshot; None if another program made it."""
        name = summary.get(ATTEMPT, "")
        if epoch_of(name) is None:
            return None
        parts = summary.get(PARTITIONS)
        return cls(name, summary.get(REPLACES, "all"), None if parts is None else tuple(json.loads(parts)))

    def left(self, done: Iterable[Change]) -> Change | None:
        """The part of it that remains after others; those with a larger epoch came later.

        None if later ones have replaced all of it.
        """
        replaced = set[str]()
        for other in done:
            if other.epoch <= self.epoch or other.replaces == "nothing":
                continue
            if other.replaces == "all" or self.partitions is None:
                return None
            replaced.update(other.partitions or ())
        if not replaced or self.partitions is None:
            return self
        parts = tuple(part for part in self.partitions if part not in replaced)
        if self.replaces == "all":
            return Change(self.name, self.replaces, parts, tuple(sorted(replaced)))
        return Change(self.name, self.replaces, parts) if parts else None

    def restored(self, done: Iterable[Change]) -> list[Change]:
        """Later changes that only added rows, which this one removes with the rows that it replaces."""
        known = list(done)
        adders = [one for one in known if one.epoch > self.epoch and one.replaces == "nothing"]
        lefts = [left for one in adders if (left := one.left(known)) is not None]
        if self.replaces == "all" and not self.spared:
            return lefts
        return [
            Change(one.name, one.replaces, parts)
            for one in lefts
            if (parts := tuple(part for part in one.partitions or () if self._removes(part)))
        ]

    def _removes(self, part: str) -> bool:
        """Whether the rows of a partition are removed for it."""
        if self.replaces == "all":
            return part not in self.spared
        return self.replaces == "partitions" and part in (self.partitions or ())
