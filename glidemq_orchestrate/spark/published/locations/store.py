"""Storage of published data: a folder of this machine, or any file system of Hadoop."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_GLOB: Final = frozenset("{}[]*?\\")


class Store(Protocol):
    """A location. Paths are relative to it, with slashes."""

    location: str

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it does not exist."""

    def folders(self, folder: str) -> list[str]:
        """The folders in a folder."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if it does not exist."""

    def create(self, path: str, text: str) -> None:
        """Write a file atomically, and create its folder. An existing file stays."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents, if it exists."""


def store_of(location: str, spark: SparkSession | None) -> Store:
    """The store of a location: a path or a URI.

    Raises:
        Unrecoverable: It is invalid, or cannot be reached without a Spark session.
    """
    if not isinstance(location, str) or not location:
        raise Unrecoverable("the location of a table must be a directory or URI")
    parts = urlsplit(location)
    if parts.scheme == "iceberg":
        raise Unrecoverable(f"{location} is a table of Iceberg: publish_iceberg writes rows for it")
    path = unquote(parts.path) if parts.scheme == "file" else location
    refuse_pattern(path)
    if is_local(location):
        return LocalStore(Path(path).absolute())
    if spark is None or not hasattr(spark, "_jvm"):
        raise Unrecoverable(f"location {location} needs a Spark session with a JVM; else use a local path")
    return HadoopStore(location.rstrip("/"), spark)


def is_local(location: str) -> bool:
    """Whether a location is local or mounted, so that it can be reached without Spark."""
    return urlsplit(location).scheme in {"", "file"}


def refuse_pattern(location: str) -> None:
    """Refuse a location that Spark would read as a pattern.

    Raises:
        Unrecoverable: It has such characters.
    """
    if odd := sorted(_GLOB & set(location)):
        raise Unrecoverable(f"location {location}: Spark reads {' '.join(odd)} in a path as a pattern")


class LocalStore:
    """A local or mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.location, self._folder = str(folder), folder

    def names(self, folder: str) -> list[str]:
        """See ``Store.names``."""
        try:
            return [path.name for path in (self._folder / folder).iterdir()]
        except FileNotFoundError:
            return []

    def folders(self, folder: str) -> list[str]:
        """See ``Store.folders``."""
        return [name for name in self.names(folder) if (self._folder / folder / name).is_dir()]

    def read(self, path: str) -> str | None:
        """See ``Store.read``."""
        try:
            return (self._folder / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def create(self, path: str, text: str) -> None:
        """See ``Store.create``; a kill leaves at most a temporary file, which is never read."""
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """See ``Store.remove``."""
        target = self._folder / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class HadoopStore:
    """The target of a URI, through the file system that Spark itself uses, with its settings."""

    def __init__(self, location: str, spark: SparkSession) -> None:
        self.location = location
        self._jvm: Any = spark._jvm  # noqa: SLF001  the only way to Hadoop's file systems
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system = self._path("").getFileSystem(conf)

    def names(self, folder: str) -> list[str]:
        """See ``Store.names``."""
        return [status.getPath().getName() for status in self._listed(folder)]

    def folders(self, folder: str) -> list[str]:
        """See ``Store.folders``."""
        return [status.getPath().getName() for status in self._listed(folder) if status.isDirectory()]

    def read(self, path: str) -> str | None:
        """See ``Store.read``."""
        target = self._path(path)
        if not self._system.exists(target):
            return None
        stream = self._system.open(target)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def create(self, path: str, text: str) -> None:
        """See ``Store.create``: a file appears complete on object stores, and after a rename on others."""
        target = self._path(path)
        if self._system.exists(target):
            return
        folder, _, name = path.rpartition("/")
        temporary = self._path(f"{folder}/_{name}.{secrets.token_hex(4)}")
        stream = self._system.create(temporary, True)
        try:
            self._jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
        finally:
            stream.close()
        why: Exception | None = None
        try:
            is_there = self._system.rename(temporary, target)
        except Exception as exc:  # noqa: BLE001  a Java error of any class
            is_there, why = False, exc
        if not is_there:  # another process was faster, with the same text
            self._system.delete(temporary, False)
            if not self._system.exists(target):
                raise OSError(f"{self.location}/{path} cannot be written: renaming is refused") from why

    def remove(self, path: str) -> None:
        """See ``Store.remove``."""
        self._system.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{path}" if path else self.location)

    def _listed(self, folder: str) -> list[Any]:
        path = self._path(folder)
        return list(self._system.listStatus(path)) if self._system.exists(path) else []
