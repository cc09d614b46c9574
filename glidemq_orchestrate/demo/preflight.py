"""Checks the requirements of the demo and the Spark tests: installs missing ones, or reports how to."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, JavaMissing
from glidemq_orchestrate.spark.setup.jvm import require_java

FREE_BYTES: Final = 2 * 1024**3
PACKAGE: Final = "openjdk-17-jre-headless"
Say = Callable[[str], None]


def ensure_java(say: Say = print) -> None:
    """Make sure that Java 17 or newer is installed, with apt-get where that is allowed.

    Raises:
        JavaMissing: Java is missing and could not be installed; the message explains what to do.
    """
    try:
        require_java()
    except JavaMissing as missing:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise
        say(f"Java is missing; installing {PACKAGE} with apt-get ...")
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
            done = subprocess.run(  # noqa: S603  fixed arguments
                [apt, *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise JavaMissing(
                    f"{missing} (apt-get {arguments[0]} failed: {done.stderr.strip()[-300:]})"
                ) from missing
        require_java()


def ensure_disk(folder: Path, needed: int = FREE_BYTES) -> None:
    """Make sure that the folder exists and its disk has room.

    Raises:
        ConfigurationError: The folder cannot be created, or less than ``needed`` bytes are free.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot create {folder}: {exc.strerror}; choose another folder with --home"
        ) from exc
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigurationError(
            f"{free / 1024**3:.1f} GiB are free in {folder}, {needed / 1024**3:.0f} are needed; "
            "free some space or choose another folder with --home"
        )


def ensure_packages(names: Sequence[str]) -> None:
    """Make sure that these Python packages can be imported.

    Raises:
        ConfigurationError: Some packages are missing; the message lists them.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo needs the Python packages {', '.join(missing)}; `make setup` installs them"
        )


def main() -> None:
    """Check for Java, and install it where that is allowed."""
    try:
        ensure_java()
    except GlideMQError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
