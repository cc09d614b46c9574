"""Folders for the temporary files of a JVM of Spark, which a killed one would leave behind for ever.

Spark removes blocks of shuffles, files that were added and the like only when it ends in order. So each JVM
that is started here keeps them in a folder of its own, in every directory that Spark would use. Its owner
holds a lock on the folder, which ends with the owner, however that ends. A folder that nobody holds is
removed when a worker starts on this machine, or a session of one has ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PREFIX: Final = "glidemq-spark-"
_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"  # Spark prefers it to the setting
_SETTING: Final = "spark.local.dir"
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"  # of the JVM of a driver; spark.driver.extraJavaOptions come after them
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """The folders of one JVM; at least one, readable by this user only.

    Args:
        conf: The settings of its driver.

    Attributes:
        folders: One in each of ``directories`` where there can be one.
    """

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._held: list[int] = []
        self.folders: list[Path] = []
        for directory in directories(conf):
            try:
                folder, held = _made(directory)
            except OSError as exc:
                logger.warning("Spark cannot use %s for temporary files: %s", directory, exc.strerror)
                continue
            self.folders.append(folder)
            self._held.append(held)
        if not self.folders:
            folder, held = _made(Path(tempfile.gettempdir()))
            self.folders, self._held = [folder], [held]

    @property
    def folder(self) -> Path:
        """The first of them."""
        return self.folders[0]

    def environment(self) -> dict[str, str]:
        """The variables by which a driver that inherits those of this process uses the folders."""
        temporary = str(self.folder).replace("\\", "\\\\").replace('"', '\\"')
        options = f'"-Djava.io.tmpdir={temporary}" {os.environ.get(_OPTIONS, "")}'.strip()
        return {_DIRECTORIES: ",".join(map(str, self.folders)), _OPTIONS: options}

    def close(self) -> None:
        """Remove them, once the JVM has ended. Repeatable."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        while self._held:
            os.close(self._held.pop())


def directories(conf: Mapping[str, str]) -> list[Path]:
    """Where Spark keeps temporary files: ``SPARK_LOCAL_DIRS``, ``spark.local.dir``, or else this user's."""
    named = os.environ.get(_DIRECTORIES) or conf.get(_SETTING) or tempfile.gettempdir()
    return [Path(name.strip()).absolute() for name in named.split(",") if name.strip()]


def sweep(conf: Mapping[str, str]) -> None:
    """Remove the folders that nobody holds any more. Harmless beside other workers. Repeatable."""
    for directory in {*directories(conf), Path(tempfile.gettempdir())}:
        for folder in directory.glob(f"{PREFIX}*"):
            with suppress(OSError):  # another's, or its owner is there
                held = os.open(folder, _FLAGS)
                try:
                    if os.fstat(held).st_uid == os.geteuid():
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(held)


def _made(directory: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
        with suppress(FileNotFoundError):  # a sweep has removed it before it was held
            held = os.open(folder, _FLAGS)
            try:
                fcntl.flock(held, fcntl.LOCK_EX)
                if os.fstat(held).st_nlink:
                    return folder, held
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)
                raise
            os.close(held)
