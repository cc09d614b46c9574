"""What is known of the cluster before a session is built: settings of its users, and whether it is there."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
TRY_SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 1.0
CONNECT_PORT: Final = 15002
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_OTHERS: Final = re.compile(r"local|local\[.+\]|local-cluster\[.+\]|yarn|yarn-client|k8s://.+")
_LINE: Final = re.compile(r"\s*([^#!\s=:]+)\s*[=:\s]\s*(.*?)\s*")


def settings_of_file(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What ``spark-defaults.conf`` sets, which Spark itself reads; empty without such a file.

    The file is in ``SPARK_CONF_DIR``, or in ``conf`` of ``SPARK_HOME``, which is PySpark's own folder by
    default, as for ``spark-submit``.
    """
    environment = os.environ if environment is None else environment
    folder = environment.get("SPARK_CONF_DIR")
    if not folder:
        home = spark_home(environment)
        folder = str(Path(home, "conf")) if home else None
    file = Path(folder, "spark-defaults.conf") if folder else None
    try:
        text = file.read_text(encoding="utf-8", errors="replace") if file else ""
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc.strerror}") from exc
    found = [match for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    return {match[1]: match[2] for match in found if match[1].startswith("spark.")}


def require_master(master: str, patience: float = PATIENCE_SECONDS) -> None:
    """Wait until a master of a standalone cluster, or a Spark Connect server, answers; not for any other.

    Spark itself would wait minutes for one that is not there, and says little.

    Args:
        master: The URL; ``spark://one:7077,two:7077`` has several, of which one suffices. What follows ``;``
            in that of a server may be secret, and is never told.
        patience: Seconds.

    Raises:
        ConfigurationError: None answers, or it is none.
    """
    if master.startswith(_CONNECT):
        master = master.partition(";")[0].rstrip("/")
        place = master.removeprefix(_CONNECT)
        parts = [place if ":" in place else f"{place}:{CONNECT_PORT}"]
    elif master.startswith(_STANDALONE):
        parts = master.removeprefix(_STANDALONE).split(",")
    elif _OTHERS.fullmatch(master):
        return
    else:
        raise ConfigurationError(
            f"{master} is no Spark master: it must be local[*], spark://HOST:PORT, yarn, "
            "k8s://https://HOST:PORT or sc://HOST:PORT"
        )
    places = [_place(part, master) for part in parts]
    until, has_told = time.monotonic() + patience, False
    while not any(_answers(host, port) for host, port in places):
        if time.monotonic() >= until:
            raise ConfigurationError(
                f"no Spark master answers at {master}: start it, or name another one in GLIDEMQ_SPARK_MASTER"
            )
        if not has_told:
            logger.warning("no Spark master answers at %s; waiting up to %g s for it", master, patience)
            has_told = True
        time.sleep(PAUSE_SECONDS)


def _place(part: str, master: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{master} is no Spark master: it must be spark://HOST:PORT or sc://HOST:PORT"
        )
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=TRY_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def spark_home(environment: Mapping[str, str] | None = None) -> str | None:
    """The folder of Spark: ``SPARK_HOME``, else that of PySpark; None where neither is there."""
    environment = os.environ if environment is None else environment
    spec = None if environment.get("SPARK_HOME") else importlib.util.find_spec("pyspark")
    return environment.get("SPARK_HOME") or (str(Path(spec.origin).parent) if spec and spec.origin else None)
