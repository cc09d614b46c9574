"""What an accepted attempt changes in a table, as the summary of its snapshot tells it. Pure."""

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
        name: Of the attempt; see ``version.name_of``.
        replaces: ``all`` that was there, ``partitions``: that of the same partitions, or ``nothing``.
        partitions: The folders that it has written; None when the table has no partitions.
        spared: Partitions that it does not replace, as later attempts have.
    """

    name: str
    replaces: str
    partitions: tuple[str, ...] | None
    spared: tuple[str, ...] = ()

    @classmethod
    def of(cls, version: Version) -> Self:
        """That of what an attempt has written."""
        replaces = "nothing" if version.adds else "all" if version.replaces_all else "partitions"
        return cls(version.name, replaces, version.partitions)

    @property
    def epoch(self) -> int:
        """The number of the attempt."""
        return epoch_of(self.name) or 0

    def summary(self) -> dict[str, str]:
        """The properties of its snapshot; ``read`` reads them."""
        parts = {} if self.partitions is None else {PARTITIONS: json.dumps(self.partitions)}
        return {ATTEMPT: self.name, REPLACES: self.replaces, **parts}

    @classmethod
    def read(cls, summary: Mapping[str, str]) -> Self | None:
        """The change that made a snapshot; None if it was none of ours."""
        name = summary.get(ATTEMPT, "")
        if epoch_of(name) is None:
            return None
        parts = summary.get(PARTITIONS)
        return cls(name, summary.get(REPLACES, "all"), None if parts is None else tuple(json.loads(parts)))

    def left(self, done: Iterable[Change]) -> Change | None:
        """What is still to be done of it after others, of which those with a larger number came later.

        None when later ones have replaced all of it.
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
        """What is removed with what this replaces, though it came later: changes that only added rows."""
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
