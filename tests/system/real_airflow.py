"""What a user does to a real Airflow, and what happens to it, beyond what the demo needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from glidemq_orchestrate.demo.airflow_stack import AirflowStack
from glidemq_orchestrate.lifeline.lifeline import lifeline
from tests.processes import lasting

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PYTHON_PATH: Final = [ROOT, ROOT / "providers" / "airflow", HERE]
RELEASE: Final = tuple(int(part) for part in metadata.version("apache-airflow-core").split(".")[:2])
DAY: Final = "2026-01-01T00:00:00Z"


class Airflow(AirflowStack):
    """An Airflow whose parts can die, with the verbs of its UI."""

    def kill(self, component: str) -> None:
        """SIGKILL a component and all that it has started."""
        process = self._processes.pop(component)  # from now on, it is not missed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lifeline.forget(process.pid)

    def pause(self, component: str) -> None:
        """SIGSTOP a component and all that it has started."""
        os.killpg(self.pids[component], signal.SIGSTOP)

    def resume(self, component: str) -> None:
        """Let a component that was paused go on."""
        os.killpg(self.pids[component], signal.SIGCONT)

    def start_again(self, component: str) -> None:
        """Start a component that was killed, or one more, such as ``triggerer-2``."""
        self._start_component(component)
        lasting.add(self.pids[component])  # the fixture ends it, as it would have ended the first one

    def story(self, dag_id: str, run_id: str) -> str:
        """All that Airflow knows of a run, for a failure of a test."""
        tasks = (self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}").glob("*/*")
        parts = [path.read_text(errors="replace") for path in sorted(tasks) if path.is_file()]
        parts += [
            f"{path.name}:\n{path.read_text(errors='replace')[-6_000:]}"
            for path in sorted(self.home.glob("*.log"))
        ]
        return "\n".join([str(self.task_states(dag_id, run_id)), *parts])

    def logs(self, dag_id: str, run_id: str, task_id: str, attempt: int | str = "*") -> str:
        """What a try of a task, or all of them, have written, and their triggers."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
        return "\n".join(path.read_text() for path in sorted(folder.rglob(f"attempt={attempt}.log*")))

    def task(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """All that the API says of a task."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances/{quote(task_id)}"
        return self._get(path)

    def begin(self, dag_id: str, run_id: str) -> str:
        """Start a DAG run with an id of its own."""
        return self.trigger_dag(dag_id, run_id=run_id)

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Sequence[str] = (),
        *,
        downstream: bool = False,
        latest: bool | None = None,
    ) -> None:
        """Clear tasks of a run, all by default; ``downstream``: with what follows them.

        ``latest``: whether tasks run in the latest version of a DAG whose bundle has versions.
        """
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "only_failed": False}
        body |= {} if latest is None else {"run_on_latest_version": latest}
        body |= {"task_ids": list(task_ids), "include_downstream": downstream} if task_ids else {}
        if not task_ids:
            path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/clear"
            self._ask("POST", path, {"dry_run": False, "only_failed": False})
            return
        self._ask("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", body)

    def command(self, *arguments: str) -> str:
        """Run a command of ``airflow``; returns what it prints."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True)
        return done.stdout

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a DAG run."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"
        status, reply = self._request("DELETE", path)
        assert status in (200, 204), reply

    def backfill(self, dag_id: str, reprocess: str) -> None:
        """Backfill one day. Airflow ends a backfill a minute after its runs; this does not wait for that."""
        body = {"dag_id": dag_id, "from_date": DAY, "to_date": DAY, "reprocess_behavior": reprocess}
        made = self._ask("POST", "/api/v2/backfills", body)["id"]
        runs = self.backfilled(dag_id)
        for _ in self._polls(60):
            if self.backfilled(dag_id) and all(state in ("success", "failed") for state in runs.values()):
                break
            runs = self.backfilled(dag_id)
        self._ask("PUT", f"/api/v2/backfills/{made}/cancel")  # else the next one is refused

    def backfilled(self, dag_id: str) -> dict[str, str]:
        """The state of each run that a backfill has made."""
        return {run: state for run, state in self.runs(dag_id).items() if run.startswith("backfill__")}

    def runs(self, dag_id: str) -> dict[str, str]:
        """The state of each run of a DAG."""
        found = self._get(f"/api/v2/dags/{quote(dag_id)}/dagRuns")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def day(self, dag_id: str, run_id: str) -> str:
        """The day after which a run may begin: of one that was begun by hand, that on which it was."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"
        return str(self._get(path)["run_after"])[:10]

    def wait_for_change(self, dag_id: str, file: Path, text: str) -> None:
        """Write a DAG file, and wait until Airflow runs the new version of its DAG."""
        self.wait_for_version(dag_id, lambda: file.write_text(text))

    def wait_for_version(self, dag_id: str, change: Callable[[], object]) -> None:
        """Change a DAG, and wait until Airflow runs its new version."""
        before = self._latest(dag_id)
        change()
        for _ in self._polls(60):
            if self._latest(dag_id) != before:
                return
        raise AssertionError(f"DAG {dag_id} was not parsed again: {self.import_errors()}")

    def _latest(self, dag_id: str) -> Any:
        found = self._get(f"/api/v2/dags/{quote(dag_id)}/dagVersions")["dag_versions"]
        return max(version["version_number"] for version in found)

    def wait_until_it_runs(self, dag_id: str, run_id: str, task_id: str, timeout: float = 60) -> None:
        """Wait until the clear of an ended task has taken effect."""
        until = time.monotonic() + timeout
        while self.task_states(dag_id, run_id)[task_id] in ("success", "failed", "skipped"):
            assert time.monotonic() < until
            time.sleep(0.1)
