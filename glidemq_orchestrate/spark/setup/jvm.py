"""Spark's JVM: the Java that runs it, and folders for the temporary files that a killed JVM leaves behind.

Spark removes shuffle blocks, added files and the like only at a regular end. So each JVM that is started here
keeps them in a separate folder, in every directory that Spark would use. The owner of the folder holds a lock
on it, and a lock always ends with its process. A folder that is not locked is removed when a worker starts on
this machine, or when a session of one has ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import JavaMissing

OLDEST_JAVA: Final = 17
_ADVICE: Final = (
    f"install a Java runtime of version {OLDEST_JAVA} or newer "
    "(for example the package openjdk-17-jre-headless) and point JAVA_HOME or PATH to it"
)


def require_java(environment: Mapping[str, str] = os.environ) -> int:
    """Return the major version of the Java that Spark would start.

    Raises:
        JavaMissing: There is none, it cannot run, or it is too old; the message names what to install.
    """
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH", ""))
    if java is None:
        raise JavaMissing(f"Spark steps need Java and none was found: {_ADVICE}")
    try:
        output = subprocess.run(  # noqa: S603  Java, as the environment names it
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as exc:
        raise JavaMissing(f"Spark steps need Java, but {java} does not run: {_ADVICE}") from exc
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    version = int(match.group(1)) if match else 0
    if version < OLDEST_JAVA:
        raise JavaMissing(
            f"Spark steps need Java {OLDEST_JAVA} or newer; {java} is version {version}: {_ADVICE}"
        )
    return version


def write_properties(conf: Mapping[str, str], folder: Path) -> Path:
    """Write settings to a file in a folder that only this user can read, and return its path.

    On the command line of ``spark-submit`` every user of the machine could read them.
    """
    file = folder / "spark.conf"
    lines = (f"{_escaped(key)} {_escaped(value)}\n" for key, value in conf.items())
    file.write_text("".join(lines), encoding="ascii")
    return file


def _escaped(text: str) -> str:
    """A key or a value as ``java.util.Properties`` reads it (its method ``load``)."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isalnum() and code < 127 else f"\\u{code:04x}" for code in codes)


logger = logging.getLogger(__name__)

PREFIX: Final = "glidemq-spark-"
_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"  # Spark prefers it to the setting
_SETTING: Final = "spark.local.dir"
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"  # of the JVM of a driver; spark.driver.extraJavaOptions come after them
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """The folders of one JVM: at least one, readable by this user only.

    Args:
        conf: The settings of its driver.

    Attributes:
        folders: One in each of ``directories`` that is usable.
    """

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._held: list[int] = []
        self.folders: list[Path] = []
        for directory in directories(conf):
            try:
                folder, held = _new_folder(directory)
            except OSError as exc:
                logger.warning("Spark cannot use %s for temporary files: %s", directory, exc.strerror)
                continue
            self.folders.append(folder)
            self._held.append(held)
        if not self.folders:
            folder, held = _new_folder(Path(tempfile.gettempdir()))
            self.folders, self._held = [folder], [held]

    @property
    def folder(self) -> Path:
        """The first of them."""
        return self.folders[0]

    def environment(self) -> dict[str, str]:
        """Environment variables that make a driver use the folders, on top of those of this process."""
        temporary = str(self.folder).replace("\\", "\\\\").replace('"', '\\"')
        options = f'"-Djava.io.tmpdir={temporary}" {os.environ.get(_OPTIONS, "")}'.strip()
        return {_DIRECTORIES: ",".join(map(str, self.folders)), _OPTIONS: options}

    def close(self) -> None:
        """Remove the folders, once the JVM has ended. Repeatable."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        while self._held:
            os.close(self._held.pop())


def directories(conf: Mapping[str, str]) -> list[Path]:
    """Where Spark keeps temporary files: ``SPARK_LOCAL_DIRS``, ``spark.local.dir``, or the user's default."""
    named = os.environ.get(_DIRECTORIES) or conf.get(_SETTING) or tempfile.gettempdir()
    return [Path(name.strip()).absolute() for name in named.split(",") if name.strip()]


def sweep(conf: Mapping[str, str]) -> None:
    """Remove the folders that are not locked. Safe beside other workers. Repeatable."""
    for directory in {*directories(conf), Path(tempfile.gettempdir())}:
        for folder in directory.glob(f"{PREFIX}*"):
            with suppress(OSError):  # another user's, or its owner still runs
                held = os.open(folder, _FLAGS)
                try:
                    if os.fstat(held).st_uid == os.geteuid():
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(held)


def _new_folder(directory: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that locks it."""
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
        with suppress(FileNotFoundError):  # a sweep removed it before it was locked
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
