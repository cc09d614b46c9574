"""A whole Airflow on this machine, for the demo and the system tests: four processes, no network.

It starts ``python -m airflow`` and calls its REST API; it does not import Airflow.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, WaitTimeout
from glidemq_orchestrate.lifeline.lifeline import lifeline

COMPONENTS: Final = ("api-server", "scheduler", "dag-processor", "triggerer")
# Running tasks report to the last process.
STOP_ORDER: Final = ("triggerer", "scheduler", "dag-processor", "api-server")
HEALTH_PARTS: Final = ("metadatabase", "scheduler", "triggerer", "dag_processor")
LOG_LINES: Final = 30
SQLITE_SECONDS: Final = 60
"""How long a process waits for the database file while others write; by default it fails after 5 s."""
_SECRETS_FILE: Final = "secrets.json"
_MIGRATED_FILE: Final = "migrated"
_READS: Final = 3
_POLL_SECONDS: Final = 0.25
_REPLY_SECONDS: Final = SQLITE_SECONDS + 15
_BUSY_SECONDS: Final = 2 * _REPLY_SECONDS
_ACCEPTED: Final = (http.client.OK, http.client.CREATED)


class AirflowStackError(GlideMQError):
    """Airflow did not start or refused a request; the message includes the end of the relevant log."""


class AirflowStack:
    """Airflow's API server, scheduler, DAG processor and triggerer, as child processes with their own groups.

    Use it in a ``with`` statement: all processes are stopped at the end, even if this process is killed. A
    second start with the same home keeps DAG runs and needs no migration.

    Args:
        home: ``AIRFLOW_HOME``: configuration, database and logs; created if missing.
        dags: Folder of DAG files.
        connections: Connections by id (a URI, or a dict with ``conn_type``, ``host``, ...).
        python_path: Additional folders from which DAGs may import.
        environment: Additional variables for all processes.
        parallelism: Tasks that run at the same time.
        triggerers: The number of triggerers; further ones are named ``triggerer-2`` and so on.
        database: URL of an empty database, as SQLAlchemy writes it; SQLite in ``home`` by default.
        progress: Called with a line for each step.
    """

    def __init__(  # noqa: PLR0913  all but the first two have defaults
        self,
        home: Path,
        dags: Path,
        *,
        connections: Mapping[str, str | Mapping[str, Any]] | None = None,
        python_path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        parallelism: int = 2,
        triggerers: int = 1,
        database: str = "",
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.home = home.resolve()
        self.url = ""
        self._dags = dags.resolve()
        self._connections = dict(connections or {})
        self._python_path = [str(path.resolve()) for path in python_path]
        self._extra = dict(environment or {})
        self._parallelism = parallelism
        self._components = (*COMPONENTS, *(f"triggerer-{number}" for number in range(2, triggerers + 1)))
        self._database = database
        self._progress = progress
        self._port = 0
        self._token = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start Airflow."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop Airflow."""
        self.stop()

    # -- life ------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 180.0) -> None:
        """Start the processes and wait until all are healthy: about half a minute, less for a second start.

        Raises:
            ConfigurationError: Airflow is not installed here.
            AirflowStackError: A process died or was not healthy in time. Nothing is left running.
        """
        try:
            version = metadata.version("apache-airflow-core")
        except metadata.PackageNotFoundError as exc:
            raise ConfigurationError(
                "Airflow is not installed: pip install airflow-provider-glidemq"
            ) from exc
        try:
            self._prepare()
            self._migrate(version)
            self._progress(f"starting Airflow {version}: {', '.join(self._components)}")
            for component in self._components:
                self._start_component(component)
            self._wait_until_healthy(time.monotonic() + timeout)
            self._token = self._get("/auth/token")["access_token"]
        except BaseException:  # also Ctrl-C: processes in separate groups would outlive this one
            self.stop()
            raise
        self._progress(f"Airflow is up at {self.url}")

    def stop(self, timeout: float = 15.0) -> None:
        """Stop all processes; those that have not ended after ``timeout`` seconds are killed. Repeatable."""
        if not self._processes:
            return
        self._progress("stopping Airflow")
        processes, self._processes = self._processes, {}
        try:
            for component in sorted(processes, key=_stop_order):
                if processes[component].poll() is None:
                    processes[component].send_signal(signal.SIGTERM)
            until = time.monotonic() + timeout
            for process in processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.1))
        finally:
            for process in processes.values():  # the process leads its group; children may have outlived it
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                lifeline.forget(process.pid)

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each component, which is also its group id."""
        return {component: process.pid for component, process in self._processes.items()}

    # -- DAGs, runs, tasks -----------------------------------------------------------------------------------

    def wait_for_dag(self, dag_id: str, timeout: float = 60.0) -> None:
        """Wait until the DAG file has been parsed.

        Raises:
            AirflowStackError: The file was not parsed within ``timeout`` seconds; the message lists import
                errors.
        """
        for _ in self._polls(timeout):
            if self._request("GET", f"/api/v2/dags/{quote(dag_id)}")[0] == http.client.OK:
                return
        raise AirflowStackError(
            f"no DAG {dag_id} after {timeout:.0f} s: {self.import_errors() or 'no import errors'}"
        )

    def import_errors(self) -> dict[str, str]:
        """DAG files that cannot be imported, with their tracebacks."""
        found = self._get("/api/v2/importErrors")["import_errors"]
        return {entry["filename"]: entry["stack_trace"] for entry in found}

    def trigger_dag(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None
    ) -> str:
        """Start a DAG run and return its run id, by default a new one.

        Airflow refuses while its SQLite database is locked; with the same id a repeat starts no second run.
        """
        run_id = run_id or f"manual__{datetime.now(UTC).isoformat()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        has_failed = False
        for _ in self._polls(_BUSY_SECONDS):
            status, reply = self._request("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", body)
            if status in _ACCEPTED or (has_failed and status == http.client.CONFLICT):
                return run_id
            if status not in (0, http.client.INTERNAL_SERVER_ERROR):
                break
            has_failed = True
            self._refuse_ended()
        raise AirflowStackError(f"DAG {dag_id} cannot be started: {status} {reply}")

    def dag_run_state(self, dag_id: str, run_id: str) -> str:
        """``queued``, ``running``, ``success`` or ``failed``."""
        state: str = self._get(_run(dag_id, run_id))["state"]
        return state

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float = 180.0) -> str:
        """Wait until a DAG run has ended and return its state.

        Raises:
            WaitTimeout: The run has not ended within ``timeout`` seconds; the message lists the states of its
                tasks, and the end of the scheduler's log.
            AirflowStackError: A component of Airflow has ended.
        """
        for _ in self._polls(timeout):
            if (state := self.dag_run_state(dag_id, run_id)) in ("success", "failed"):
                return state
            self._refuse_ended()
        raise WaitTimeout(
            f"{dag_id} {run_id} has not ended in {timeout:.0f} s: {self.task_states(dag_id, run_id)}; the "
            f"end of the scheduler's log:\n{self._tail('scheduler')}"
        )

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """The state of each task; mapped tasks are named ``task[index]``."""
        found = self._get(f"{_run(dag_id, run_id)}/taskInstances")["task_instances"]
        return {_name(entry): entry["state"] for entry in found}

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, states: Sequence[str], timeout: float = 90.0
    ) -> str:
        """Wait until a task is in one of the states, and return the state.

        Raises:
            WaitTimeout: The task reached none of them within ``timeout`` seconds.
            AirflowStackError: A component of Airflow has ended.
        """
        state: str | None = None
        for _ in self._polls(timeout):
            state = self.task_states(dag_id, run_id).get(task_id)
            if state is not None and state in states:
                return state
            self._refuse_ended()
        raise WaitTimeout(f"{dag_id}.{task_id} is {state} after {timeout:.0f} s, not {' or '.join(states)}")

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """The log of one try, with the log of its trigger."""
        found = self._get(f"{_task(dag_id, run_id, task_id)}/logs/{try_number}", {"full_content": "true"})
        content = found["content"]
        return content if isinstance(content, str) else "\n".join(_line(entry) for entry in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """The XCom value that a task has pushed; None before that."""
        place = f"{_task(dag_id, run_id, task_id)}/xcomEntries/{quote(key)}?deserialize=true"
        status, body = self._request("GET", place)
        return body["value"] if status == http.client.OK else None

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Set the state of a task, as the UI does."""
        self._ask("PATCH", _task(dag_id, run_id, task_id), {"new_state": state})

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task so that it runs again, as the UI does."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self._ask("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", body)

    # -- processes -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._port, self._trigger_port, self._worker_port = _free_ports(3)
        self.url = f"http://127.0.0.1:{self._port}"
        given = {**os.environ, **self._extra}
        self._environment = {**given, **self._settings(_kept_secrets(self.home), given)}

    def _settings(self, kept: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
        options = {
            "CORE__DAGS_FOLDER": str(self._dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": str(self._parallelism),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__FERNET_KEY": kept["fernet"],
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__TEST_CONNECTION": "Enabled",
            "DATABASE__SQL_ALCHEMY_CONN": self._database or self._sqlite,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__WORKERS": "1",
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": kept["session"],
            "API_AUTH__JWT_SECRET": kept["jwt"],
            "LOGGING__WORKER_LOG_SERVER_PORT": str(self._worker_port),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._trigger_port),
            "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        }
        connections = {
            f"AIRFLOW_CONN_{name.upper()}": value if isinstance(value, str) else json.dumps(dict(value))
            for name, value in self._connections.items()
        }
        python_path = [*self._python_path, *filter(None, [given.get("PYTHONPATH", "")])]
        return {
            "AIRFLOW_HOME": str(self.home),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(python_path),
            "no_proxy": "*",  # the proxies of a build machine may catch 127.0.0.1 too
            "NO_PROXY": "*",
            **{f"AIRFLOW__{name}": value for name, value in options.items()},
            **connections,
        }

    @property
    def _sqlite(self) -> str:
        return f"sqlite:///{self.home}/airflow.db?timeout={SQLITE_SECONDS}"

    def _migrate(self, version: str) -> None:
        marker = self.home / _MIGRATED_FILE
        has_database = self._database or (self.home / "airflow.db").exists()
        if has_database and marker.exists() and marker.read_text() == version:
            return
        self._progress("creating Airflow's database")
        self._start("migrate", "db", "migrate")
        if self._processes["migrate"].wait() != 0:
            raise AirflowStackError(f"airflow db migrate failed:\n{self._tail('migrate')}")
        del self._processes["migrate"]
        marker.write_text(version)

    def _start_component(self, name: str) -> None:
        component = _component(name)
        quiet = ["--skip-serve-logs"] if component in ("scheduler", "triggerer") else []
        self._start(name, component, *quiet)

    def _start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "airflow", *arguments]
        with (self.home / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603  Airflow, with arguments from here
                command,
                env={**self._environment, **lifeline.mark},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        lifeline.watch(self._processes[name].pid)

    def _wait_until_healthy(self, until: float) -> None:
        health: Any = "no response"
        for _ in self._polls(until - time.monotonic()):
            self._refuse_ended()
            status, health = self._request("GET", "/api/v2/monitor/health")
            if status == http.client.OK and all(health[part]["status"] == "healthy" for part in HEALTH_PARTS):
                return
        tails = "\n".join(f"{component}:\n{self._tail(component)}" for component in self._components)
        raise AirflowStackError(f"Airflow is not healthy: {health}\n{tails}")

    def _refuse_ended(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AirflowStackError(f"airflow {name} has ended:\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = (self.home / f"{name}.log").read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_LINES:])
        return ""

    def _polls(self, timeout: float) -> Iterator[None]:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            yield
            time.sleep(_POLL_SECONDS)

    # -- the REST API ----------------------------------------------------------------------------------------

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        whole = f"{path}?{urlencode(query)}" if query else path
        for _ in range(_READS - 1):  # on a busy machine, it may not reply in time
            status, reply = self._request("GET", whole)
            if status in _ACCEPTED:
                return reply
            if status:
                break
        return self._ask("GET", whole)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        status, reply = self._request(method, path, body)
        if status not in _ACCEPTED:
            raise AirflowStackError(f"{method} {path}: {status} {reply}")
        return reply

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Send one request; status 0 when there is no response."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_REPLY_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as exc:
            return 0, f"no response: {exc!r}"
        finally:
            connection.close()
        return response.status, json.loads(text) if text[:1] in ("{", "[") else text


def _component(name: str) -> str:
    """The component of a process name: ``triggerer-2`` is a triggerer."""
    return next((one for one in COMPONENTS if name == one or name.startswith(f"{one}-")), name)


def _stop_order(name: str) -> int:
    component = _component(name)
    return STOP_ORDER.index(component) if component in STOP_ORDER else len(STOP_ORDER)


def _run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}"


def _name(entry: Mapping[str, Any]) -> str:
    return entry["task_id"] if entry["map_index"] < 0 else f"{entry['task_id']}[{entry['map_index']}]"


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    rest = {key: value for key, value in entry.items() if key in ("error_detail", "exc_info") and value}
    return f"{entry.get('event', '')} {json.dumps(rest)}" if rest else str(entry.get("event", ""))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _kept_secrets(home: Path) -> dict[str, str]:
    """The keys of this home, which must survive restarts: the database contains data encrypted with them."""
    path = home / _SECRETS_FILE
    if path.exists():
        kept: dict[str, str] = json.loads(path.read_text())
        return kept
    made = {
        "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "session": secrets.token_hex(16),
        "jwt": secrets.token_hex(32),
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(made))
    return made
