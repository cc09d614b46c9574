"""Versions of a published table or folder, and which of them make up what readers see.

Below a location are::

    attempts/1795608250123-4f0c1a2b3c4d/            what one attempt wrote, and its _version.json
    versions/1795608250123-4f0c1a2b3c4d.json        the same file: this attempt counts

The number is the attempt's ``ctx.epoch``, so a later attempt has a larger one. The rest distinguishes jobs
that began in the same millisecond. An attempt without a file in ``versions`` is not visible.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Self
from urllib.parse import unquote

from glidemq_orchestrate.spark.published.locations.store import Store
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context

ATTEMPTS: Final = "attempts"
VERSIONS: Final = "versions"
MANIFEST: Final = "_version.json"  # Spark ignores files whose names begin with an underscore
FILES: Final = "files"
"""The format of a folder of arbitrary files."""
FIELD: Final = "published"
_NAME: Final = re.compile(r"(\d{1,16})-([0-9a-f]{12})")
_MAX_DEPTH: Final = 4
_SUFFIX: Final = ".json"


class NotPublished(Exception):
    """There is no such version, or it is of another kind."""


def name_of(ctx: Context) -> str:
    """The name of what an attempt publishes.

    Raises:
        NotPublished: The attempt has no epoch, because no worker runs it.
    """
    if ctx.epoch <= 0:
        raise NotPublished("only a job that a worker runs can publish: this context has no epoch")
    who = f"{ctx.queue}/{ctx.job_id}/{ctx.token}"
    return f"{ctx.epoch}-{hashlib.sha256(who.encode()).hexdigest()[:12]}"


def epoch_of(name: str) -> int | None:
    """The epoch in the name of an attempt; None if it is not such a name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Version:
    """What one attempt has published.

    Attributes:
        name: The name of the attempt; see ``name_of``.
        format: A format of Spark's data sources, or ``files``.
        schema: Spark's JSON of the columns; None for files.
        partitions: The folders of the partitions, such as ``day=2026-01-01/hour=3``; None without partitions.
        options: Options of the writer, which the reader gets too.
        replaces_all: Whether it replaces all earlier versions, or only their partitions of the same names.
        adds: Whether it replaces nothing: its rows are added to the existing ones (tables of Iceberg).
        partition_by: The columns of the partitions; None if they were not stored.
        table: The id of its table of Iceberg; else empty.
        files: The number of files that it has written to a table of Iceberg.
    """

    name: str
    format: str
    schema: Any = None
    partitions: tuple[str, ...] | None = None
    replaces_all: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    adds: bool = False
    partition_by: tuple[str, ...] | None = None
    table: str = ""
    files: int = 0

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of the partitions, read from their folders if necessary; None if unknown."""
        if self.partition_by is not None or self.partitions == ():
            return self.partition_by
        parts = self.partitions[0].split("/") if self.partitions else []
        return tuple(unquote(part.partition("=")[0]) for part in parts)

    @property
    def epoch(self) -> int:
        """The epoch of the attempt."""
        return epoch_of(self.name) or 0

    def text(self) -> str:
        """The text of its file."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the text of the file of a version.

        Raises:
            ValueError: It is malformed.
        """
        import msgspec  # noqa: PLC0415  slow to import

        try:
            made = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as exc:
            raise ValueError(f"the file of a version is malformed: {exc}") from exc
        if epoch_of(made.name) is None:
            raise ValueError("the file of a version names no attempt")
        return made


def newest_first(names: Iterable[str]) -> list[str]:
    """The names of attempts, those with the largest epoch first; other names are omitted."""
    found = [(epoch, name) for name in names if (epoch := epoch_of(name)) is not None]
    return [name for _, name in sorted(found, reverse=True)]


def visible(versions: Iterable[Version]) -> Iterator[tuple[Version, tuple[str, ...] | None]]:
    """What readers see: versions, each with the partitions that no later one has replaced.

    Args:
        versions: The newest first; it is consumed only as far as needed.
    """
    replaced: set[str] = set()
    for version in versions:
        if version.partitions is None:
            if not replaced:
                yield version, None
            return
        if left := tuple(part for part in version.partitions if part not in replaced):
            yield version, left
        if version.replaces_all:
            return
        replaced.update(version.partitions)


@dataclass(frozen=True, slots=True)
class Publication:
    """A reference to what a step has published: the location and the attempt."""

    location: str
    name: str

    @property
    def path(self) -> str:
        """The folder with the data."""
        return f"{self.location}/{ATTEMPTS}/{self.name}"

    @property
    def line(self) -> str:
        """A line of text that ``of_line`` reads."""
        return json.dumps([self.name, self.location])

    @classmethod
    def of_line(cls, line: str) -> Self | None:
        """The publication in a line; None if the line has an unknown form."""
        try:
            name, location = json.loads(line)
        except (ValueError, TypeError):
            return None
        is_one = isinstance(location, str) and isinstance(name, str) and epoch_of(name) is not None
        return cls(location, name) if is_one else None

    def result(self, **more: Json) -> dict[str, Json]:
        """The part of a step's result that ``publications_in`` finds."""
        here: dict[str, Json] = {"location": self.location, "name": self.name, "path": self.path}
        return {FIELD: {**here, **more}}


def publications_in(result: Json, depth: int = _MAX_DEPTH) -> Iterator[Publication]:
    """The publications in the result of a step, including nested objects and lists."""
    if isinstance(result, dict):
        fields = result.get(FIELD)
        if isinstance(fields, dict):
            location, name = fields.get("location"), fields.get("name")
            if isinstance(location, str) and isinstance(name, str) and epoch_of(name) is not None:
                yield Publication(location, name)
    inner = result.values() if isinstance(result, dict) else result if isinstance(result, list) else ()
    if depth > 0:
        for value in inner:
            yield from publications_in(value, depth - 1)


def file_of(name: str) -> str:
    """The file of a version, which makes its attempt visible."""
    return f"{VERSIONS}/{name}{_SUFFIX}"


def version_names(store: Store) -> list[str]:
    """The names of the attempts with a version, the newest first."""
    return newest_first(name.removesuffix(_SUFFIX) for name in store.names(VERSIONS))


def versions(store: Store) -> Iterator[Version]:
    """The versions, the newest first; each is read on demand."""
    for name in version_names(store):
        if (text := store.read(file_of(name))) is not None:
            yield Version.read(text)


def attempts_without_version(store: Store, known: set[str], grace: timedelta, now_ms: int) -> list[str]:
    """The attempts that have no version, and are older than the grace."""
    return [
        name
        for name in newest_first(store.names(ATTEMPTS))
        if name not in known and is_older(int(name.partition("-")[0]), grace, now_ms)
    ]


def is_older(epoch: int, than: timedelta, now_ms: int) -> bool:
    """Whether an attempt began longer before a time than this."""
    return now_ms - epoch > than.total_seconds() * 1000
