"""Makes an accepted attempt exactly one commit of a table of Iceberg, even if several processes try.

What a kill leaves behind, and who repairs it:

- before the result is accepted: a folder of files in no snapshot, which ``tidy`` removes;
- after it, before the commit: the server has noted the attempt. A Spark worker of the queue commits it within
  a minute or when it starts, and so does any reader of the result;
- after the commit, before the file in ``versions``: the commit has set a property of the table with the name
  of the attempt, so the next process finds it. Snapshots expire, and their times come from the committing
  process; properties stay. A commit removes the properties of attempts that have a file in ``versions``.

Of two concurrent commits the catalog refuses one; its process then finds the other commit.
"""

from __future__ import annotations

import functools
import json
import random
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.spark.published.locations.iceberg.conversion import for_spark, parts_of, rows_of
from glidemq_orchestrate.spark.published.locations.store import Store, store_of
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    MANIFEST,
    NotPublished,
    Version,
    attempts_without_version,
    epoch_of,
    file_of,
    newest_first,
    version_names,
)
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

SCHEME: Final = "iceberg:"
MAX_TRIES: Final = 20
"""How many conflicting commits of others are tolerated."""
PAUSE_SECONDS: Final = 0.5
COMMITTED: Final = "glidemq.committed."
"""The prefix of a table property with the name of a committed attempt."""
MAX_REMOVED: Final = 100
"""How many of these properties a commit checks for removal."""


class TableChanged(Exception):
    """The columns or partitions of a table changed, or it was created again, while a step wrote to it."""


def is_iceberg(location: str) -> bool:
    """Whether a location in a result is a table: ``iceberg:catalog.namespace.table``."""
    return isinstance(location, str) and location.startswith(SCHEME)


def catalog_of(location: str) -> tuple[Catalog, tuple[str, ...]]:
    """The catalog of a location, as pyiceberg is configured for it, and the name of the table there.

    Raises:
        Unrecoverable: It names no table.
        ConfigurationError: pyiceberg or the catalog is missing.
    """
    name, *table = location.removeprefix(SCHEME).split(".")
    if not all([name, *table]) or len(table) < 2:
        raise Unrecoverable("a table of Iceberg is named catalog.namespace.table, such as lake.sales.orders")
    return loaded(name), tuple(table)


@functools.cache
def loaded(name: str) -> Catalog:
    """A catalog of pyiceberg's configuration, which is read once per process.

    Raises:
        ConfigurationError: pyiceberg or the catalog is missing.
    """
    try:
        with importing():
            from pyiceberg.catalog import load_catalog
    except ImportError as exc:
        raise ConfigurationError(
            "tables of Iceberg need pyiceberg: pip install 'glidemq-orchestrate[iceberg]'"
        ) from exc
    try:
        return load_catalog(name)
    except ValueError as exc:
        raise ConfigurationError(
            f"pyiceberg has no catalog {name}: set PYICEBERG_CATALOG__{name.upper()}__URI and the like, or "
            "write a .pyiceberg.yaml, where the Spark workers run"
        ) from exc


class IcebergTable:
    """See ``Target``.

    Attributes:
        table: Its metadata when it was opened or last refreshed.
    """

    def __init__(self, location: str, table: Table, store: Store) -> None:
        self.location, self.table, self.store = location, table, store

    @classmethod
    def open(cls, location: str, spark: SparkSession | None) -> Self:
        """Open an existing table.

        Raises:
            Unrecoverable, ConfigurationError: It cannot be reached; see ``catalog_of`` and ``store_of``.
            NotPublished: There is no such table.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog, name = catalog_of(location)
        try:
            table = catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError) as exc:
            raise NotPublished(f"there is no table {location.removeprefix(SCHEME)}") from exc
        return cls(location, table, store_of(for_spark(table.location()), spark))

    @property
    def id(self) -> str:
        """The id of the table, which a new table of the same name does not have."""
        return str(self.table.metadata.table_uuid)

    def check_unchanged(self) -> None:
        """Refresh the table.

        Raises:
            TableChanged: Files that were written for its earlier state may no longer fit.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            now = self.table.catalog.load_table(self.table.name())
        except NoSuchTableError:
            now = None
        if now is None or not _has_same_layout(self.table, now):
            raise TableChanged(
                f"the columns or partitions of {self.location} were changed while the rows were written"
            )
        self.table = now

    def make(self, name: str) -> bool:
        """See ``Target.make``."""
        if self.store.read(path := file_of(name)) is not None:
            return True
        text = self.store.read(f"{ATTEMPTS}/{name}/{MANIFEST}")
        if text is None:
            return self._is_committed(name)
        version = Version.read(text)
        for _ in range(MAX_TRIES):
            if self._commit(version):
                break
            time.sleep(random.uniform(0, PAUSE_SECONDS))  # noqa: S311  so that two processes do not collide again
            self.table = self.table.refresh()
        else:
            raise OSError(f"{self.location}: {MAX_TRIES} commits in a row conflicted with those of others")
        self.store.create(path, text)
        return True

    def tidy(self, grace: timedelta, replaced: timedelta | None, now_ms: int) -> int:
        """See ``Target.tidy``; only attempts in no snapshot. The rest is Iceberg's own maintenance."""
        if replaced is not None:
            raise Unrecoverable(
                f"{self.location}: old rows of a table of Iceberg end with its snapshots. Fix: expire these"
            )
        names = attempts_without_version(self.store, set(version_names(self.store)), grace, now_ms)
        if not names:
            return 0
        files = self.table.refresh().inspect.all_files().column("file_path").to_pylist()
        used = {str(file).rpartition(f"/{ATTEMPTS}/")[2].partition("/")[0] for file in files}
        unused = [name for name in names if name not in used]
        for name in unused:
            self.store.remove(f"{ATTEMPTS}/{name}")
        return len(unused)

    def _is_committed(self, name: str) -> bool:
        """Whether an attempt is committed."""
        is_noted = f"{COMMITTED}{name}" in self.table.properties
        return is_noted or any(change.name == name for change in self._in_snapshots())

    def _commit(self, version: Version) -> bool:
        """Commit the remaining part of an attempt, if any; false if another process was faster."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import TableProperties

        if self._is_committed(version.name):
            return True
        table, change = self.table, TableChange.of(version)
        self._check(version)
        changes = self._changes(change)
        left = change.left(changes)
        if left is None:
            return True
        files = [file for one in (left, *left.restored(changes)) for file in self.files(one)]
        if left.replaces == "nothing" and not files:
            return True
        # pyiceberg would retry the commit by itself, without checking what the other commit has done.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        try:
            with table.transaction() as changing, warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that nothing was replaced
                self._replace(changing, left)
                if files:
                    changing.add_files(files, snapshot_properties=left.summary())
                if obsolete := self._obsolete_properties():
                    changing.remove_properties(*obsolete)
                changing.set_properties({f"{COMMITTED}{version.name}": left.replaces})
        except CommitFailedException:
            return False
        return True

    def _replace(self, changing: Any, change: TableChange) -> None:
        from pyiceberg.expressions import AlwaysTrue, Not

        if self.table.current_snapshot() is None or change.replaces == "nothing":
            return
        folders = change.spared if change.replaces == "all" else change.partitions
        rows = rows_of(folders, parts_of(self.table)) if folders else AlwaysTrue()
        if change.replaces == "all":
            changing.delete(Not(rows) if folders else rows, snapshot_properties=change.summary())
        elif folders:
            changing.delete(rows, snapshot_properties=change.summary())

    def files(self, change: TableChange) -> list[str]:
        """The data files of an attempt, as the catalog names them."""
        below = f"{ATTEMPTS}/{change.name}"
        folders = [below] if change.partitions is None else [f"{below}/{part}" for part in change.partitions]
        base = self.table.location().rstrip("/")
        return [
            f"{base}/{folder}/{name}"
            for folder in folders
            for name in sorted(self.store.names(folder))
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]

    def _obsolete_properties(self) -> list[str]:
        """The properties of attempts that have a file in ``versions``."""
        noted = [name for name in self.table.properties if name.startswith(COMMITTED)][:MAX_REMOVED]
        return [name for name in noted if self.store.read(file_of(name.removeprefix(COMMITTED))) is not None]

    def _changes(self, change: TableChange) -> Sequence[TableChange]:
        """The changes in the snapshots; if some have expired, also the later attempts that count."""
        found = list(self._in_snapshots())
        if self._has_all_snapshots():
            return found
        known = {one.name for one in found}
        noted = [name.removeprefix(COMMITTED) for name in self.table.properties if name.startswith(COMMITTED)]
        for name in newest_first({*version_names(self.store), *noted} - known):
            if (epoch_of(name) or 0) <= change.epoch:
                break
            text = self.store.read(file_of(name)) or self.store.read(f"{ATTEMPTS}/{name}/{MANIFEST}")
            found += [TableChange.of(Version.read(text))] if text is not None else []
        return found

    def _in_snapshots(self) -> Sequence[TableChange]:
        """The changes in the snapshots."""
        summaries = [snapshot.summary for snapshot in self.table.snapshots()]
        read = [
            TableChange.read(summary.additional_properties) for summary in summaries if summary is not None
        ]
        return [change for change in read if change is not None]

    def _has_all_snapshots(self) -> bool:
        """Whether the table still has all its snapshots; those of format 1 have no numbers."""
        snapshots = self.table.snapshots()
        if not snapshots:
            return not getattr(self.table.metadata, "last_sequence_number", 0)
        return any((one.sequence_number or 0) <= 1 and one.parent_snapshot_id is None for one in snapshots)

    def _check(self, version: Version) -> None:
        """Refuse what cannot be committed.

        Raises:
            NotPublished: The table or the files are gone.
        """
        attempt = f"attempt {version.name} of {self.location}"
        if version.table != self.id:
            raise NotPublished(f"{attempt} was for another table, which had this name then")
        missing = version.files - len(self.files(TableChange.of(version)))
        if missing > 0:
            raise NotPublished(
                f"{missing} of {version.files} files of {attempt} were removed before its commit"
            )


def _has_same_layout(one: Table, other: Table) -> bool:
    return (
        one.metadata.table_uuid == other.metadata.table_uuid
        and one.schema().fields == other.schema().fields
        and one.spec().fields == other.spec().fields
    )


ATTEMPT: Final = "glidemq.attempt"
REPLACES: Final = "glidemq.replaces"
PARTITIONS: Final = "glidemq.partitions"


@dataclass(frozen=True, slots=True)
class TableChange:
    """What an attempt changes in a table.

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

    def left(self, done: Iterable[TableChange]) -> TableChange | None:
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
            return TableChange(self.name, self.replaces, parts, tuple(sorted(replaced)))
        return TableChange(self.name, self.replaces, parts) if parts else None

    def restored(self, done: Iterable[TableChange]) -> list[TableChange]:
        """Later changes that only added rows, which this one removes with the rows that it replaces."""
        known = list(done)
        adders = [one for one in known if one.epoch > self.epoch and one.replaces == "nothing"]
        lefts = [left for one in adders if (left := one.left(known)) is not None]
        if self.replaces == "all" and not self.spared:
            return lefts
        return [
            TableChange(one.name, one.replaces, parts)
            for one in lefts
            if (parts := tuple(part for part in one.partitions or () if self._removes(part)))
        ]

    def _removes(self, part: str) -> bool:
        """Whether the rows of a partition are removed for it."""
        if self.replaces == "all":
            return part not in self.spared
        return self.replaces == "partitions" and part in (self.partitions or ())
