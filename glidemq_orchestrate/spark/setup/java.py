"""The Java that Spark would start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import JavaMissing

OLDEST_JAVA: Final = 17
_ADVICE: Final = (
    f"install a Java runtime of version {OLDEST_JAVA} or newer "
    "(for example the package openjdk-17-jre-headless) and point JAVA_HOME or PATH to it"
)


def require_java(environment: Mapping[str, str] | None = None) -> int:
    """Return the major version of the Java that Spark would start.

    Raises:
        JavaMissing: There is none, it cannot run, or it is too old; the message names what to install.
    """
    environment = os.environ if environment is None else environment
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
            f"Spark steps need Java {OLDEST_JAVA} or newer, {java} is version {version}: {_ADVICE}"
        )
    return version
