"""The processes of a whole Dagster on this machine: code server, webserver, daemon; no network."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import dagster as dg
import yaml

from tests.processes import end, lasting, spawn

LOCATION: Final = "tests"
COMPONENTS: Final = ("code-server", "webserver", "daemon")
STARTED: Final = "Started Dagster code server"
POLL_SECONDS: Final = 0.25
LOG_LINES: Final = 60

# Runs begin at once, not at the next look of a queue; retries only where a run has the tag for it.
SETTINGS: Final[Mapping[str, Any]] = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"},
    "run_retries": {"enabled": True, "max_retries": 0},
}
# On a loaded machine its usual minute is too short.
TIMEOUTS: Final = ("DAGSTER_GRPC_TIMEOUT_SECONDS", "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS")


class DagsterStackError(AssertionError):
    """Dagster did not start, refused a request, or did not do something in time; with the end of its logs."""


class DagsterProcesses:
    """A code server, a webserver and a daemon, as child processes with their own groups.

    Use it in a ``with`` statement. A second start with the same home keeps runs and assets.

    Args:
        home: ``DAGSTER_HOME``: settings, storage and logs; created if missing.
        definitions: The Python file of the code location.
        environment: Additional variables for all processes, also those of runs.
        python_path: Folders from which the definitions may import.
        settings: More of ``dagster.yaml``, such as ``run_launcher``; its keys replace those of ``SETTINGS``.
        progress: Called with a line for each step.
    """

    def __init__(
        self,
        home: Path,
        definitions: Path,
        *,
        environment: Mapping[str, str] | None = None,
        python_path: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.home = home.resolve()
        self._definitions = definitions.resolve()
        self._extra = dict(environment or {})
        self._python_path = [str(path.resolve()) for path in python_path]
        self._settings = {**SETTINGS, **(settings or {})}
        self._progress = progress
        self._code_port, self._port = 0, 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- life ------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 240.0) -> None:
        """Start the processes and wait until all are ready: some 20 seconds.

        Raises:
            DagsterStackError: A process died or was not ready in time. Nothing is left running.
        """
        try:
            self._prepare()
            until = time.monotonic() + timeout
            for component in COMPONENTS:
                self._progress(f"starting Dagster's {component}")
                self._start(component)
                self._wait(until, component, self._is_ready(component))
        except BaseException:
            self.stop()
            raise
        self._progress(f"Dagster is up at http://127.0.0.1:{self._port}")

    def stop(self, timeout: float = 30.0) -> None:
        """Stop all processes; those that have not ended in time are killed. Repeatable."""
        self._open.close()
        for component in reversed(list(self._processes)):  # runs are children of the code server
            process = self._processes.pop(component)
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout)
            end(process)

    def kill(self, component: str) -> None:
        """SIGKILL a component and all that it has started."""
        end(self._processes[component])

    def start_again(self, component: str, timeout: float = 120.0) -> None:
        """Start a component that was killed, and wait until it is ready."""
        self._start(component)
        lasting.add(self._processes[component].pid)  # the fixture ends it, as it would the first one
        self._wait(time.monotonic() + timeout, component, self._is_ready(component))

    @property
    def instance(self) -> dg.DagsterInstance:
        """The instance of this home, opened here."""
        return self._instance

    # -- processes -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._code_port, self._port = _free_ports(2)
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(self._settings))
        server = {"host": "127.0.0.1", "port": self._code_port, "location_name": LOCATION}
        (self.home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        self._instance = self._open.enter_context(dg.DagsterInstance.from_config(str(self.home)))

    def _start(self, component: str) -> None:
        workspace = ("-w", self.home / "workspace.yaml")
        commands: dict[str, Sequence[Any]] = {
            "code-server": ("dagster", "api", "grpc", "-f", self._definitions, "-h", "127.0.0.1", "-p",
                            self._code_port, "--location-name", LOCATION),
            "webserver": ("dagster_webserver", "-h", "127.0.0.1", "-p", self._port, *workspace),
            "daemon": ("dagster._daemon", "run", *workspace),
        }  # fmt: skip
        path = [*self._python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "no_proxy": "*",  # the proxies of a build machine may catch 127.0.0.1 too
            "NO_PROXY": "*",
            **dict.fromkeys(TIMEOUTS, "300"),
            **self._extra,
        }
        with self._log(component).open("wb") as log:
            self._processes[component] = spawn(
                [sys.executable, "-m", *commands[component]],
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_take_signals,
            )

    def _is_ready(self, component: str) -> Callable[[], bool]:
        return {
            "code-server": lambda: STARTED in self._log("code-server").read_text(errors="replace"),
            "webserver": self._has_location,
            "daemon": self._has_daemons,
        }[component]

    def _has_location(self) -> bool:
        query = """{ it: locationStatusesOrError { __typename
            ... on WorkspaceLocationStatusEntries { entries { name loadStatus } } } }"""
        status, reply = self._request({"query": query})
        if status != http.client.OK:
            return False
        entries = reply["data"]["it"]["entries"]
        return [entry["loadStatus"] for entry in entries] == ["LOADED"]

    def _has_daemons(self) -> bool:
        query = "{ it: instance { daemonHealth { allDaemonStatuses { required healthy } } } }"
        status, reply = self._request({"query": query})
        if status != http.client.OK:
            return False
        statuses = reply["data"]["it"]["daemonHealth"]["allDaemonStatuses"]
        return all(each["healthy"] for each in statuses if each["required"])

    def _wait(self, until: float, component: str, is_ready: Callable[[], bool]) -> None:
        for _ in polls(until - time.monotonic()):
            if self._processes[component].poll() is not None:
                raise DagsterStackError(f"Dagster's {component} has ended:\n{self.tail(component)}")
            if is_ready():
                return
        raise DagsterStackError(f"Dagster's {component} is not ready:\n{self.tail(component)}")

    def _log(self, component: str) -> Path:
        return self.home / f"{component}.log"

    def tail(self, component: str) -> str:
        with contextlib.suppress(OSError):
            lines = self._log(component).read_text(errors="replace").splitlines()
            return "\n".join([f"{component}:", *lines[-LOG_LINES:]])
        return ""

    # -- GraphQL ---------------------------------------------------------------------------------------------

    def ask(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The field ``it`` of the reply."""
        status, reply = self._request({"query": query, "variables": variables})
        found = reply["data"]["it"] if status == http.client.OK and not reply.get("errors") else None
        if found is None or _is_refusal(found["__typename"]):
            raise DagsterStackError(f"Dagster refused {query}: {status} {reply}\n{self.tail('webserver')}")
        return dict(found)

    def _request(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send one request; status 0 when there is no response."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            connection.request("POST", "/graphql", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()
        return response.status, json.loads(text) if text[:1] == "{" else text


def _is_refusal(kind: str) -> bool:
    return kind.endswith(("Error", "Failure", "Invalid", "Conflict"))


def polls(timeout: float) -> Iterator[None]:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        yield
        time.sleep(POLL_SECONDS)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _take_signals() -> None:
    """Dagster gives SIGTERM the handler of SIGINT, which a shell may have set to ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
