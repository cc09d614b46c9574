"""The Spark master: whether it replies, before a session is built; and the folder of Spark."""

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

WAIT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 1.0
CONNECT_PORT: Final = 15002
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_OTHERS: Final = re.compile(r"local|local\[.+\]|local-cluster\[.+\]|yarn|yarn-client|k8s://.+")


def require_master(master: str, patience: float = WAIT_SECONDS) -> None:
    """Wait until the master of a standalone cluster, or a Spark Connect server, accepts connections.

    Other masters are not checked. Spark itself would wait minutes for a missing one, with a poor message.

    Args:
        master: The URL; ``spark://one:7077,two:7077`` has several, of which one suffices. The part of a
            server's URL after ``;`` may be secret, and never appears in a message.
        patience: How many seconds to wait.

    Raises:
        ConfigurationError: None replies, or the URL is not that of a master.
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
            f"{master} is not a Spark master: it must be local[*], spark://HOST:PORT, yarn, "
            "k8s://https://HOST:PORT or sc://HOST:PORT"
        )
    places = [_place(part, master) for part in parts]
    until, has_warned = time.monotonic() + patience, False
    while not any(_answers(host, port) for host, port in places):
        if time.monotonic() >= until:
            raise ConfigurationError(
                f"no Spark master replies at {master}. Fix: start it, or change GLIDEMQ_SPARK_MASTER"
            )
        if not has_warned:
            logger.warning("no Spark master replies at %s; waiting up to %g s for it", master, patience)
            has_warned = True
        time.sleep(PAUSE_SECONDS)


def _place(part: str, master: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{master} is not a Spark master: it must be spark://HOST:PORT or sc://HOST:PORT"
        )
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def spark_home(environment: Mapping[str, str] | None = None) -> str | None:
    """The folder of Spark: ``SPARK_HOME``, else that of PySpark; None without both."""
    environment = os.environ if environment is None else environment
    spec = None if environment.get("SPARK_HOME") else importlib.util.find_spec("pyspark")
    return environment.get("SPARK_HOME") or (str(Path(spec.origin).parent) if spec and spec.origin else None)
