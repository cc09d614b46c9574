"""What a worker was started with reaches its handlers, wherever they run."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, Queue
from tests.processes import spawned
from tests.server import process_handlers

if TYPE_CHECKING:
    from tests.conftest import RunWorker

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
def test_a_handler_sees_from_where_it_may_import(queue: Queue, run_worker: RunWorker, kind: str) -> None:
    handlers = Handlers()
    if kind == "async":

        @handlers.handler("allowed")
        async def allowed(ctx: Any) -> Any:
            return list(ctx.allow_import)

    else:
        handlers.handler("allowed", process=kind == "process")(process_handlers.allowed)
    run_worker(["etl"], handlers, allow_import=["mine", "yours.sub"])
    assert queue.add_and_wait("allowed", timeout=MINUTE) == ["mine", "yours.sub"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["app"]),
        (["--allow-import", "mine", "--allow-import", "yours.sub"], ["mine", "yours.sub"]),
    ],
)
def test_the_command_line_allows_the_package_of_the_app_or_what_is_named(
    url: str, queue: Queue, tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    (tmp_path / "app" / "work.py").write_text(
        "from glidemq_orchestrate import Handlers\n"
        "from tests.server.process_handlers import allowed\n"
        "handlers = Handlers()\n"
        "handlers.handler('allowed')(allowed)\n"
    )
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app.work", "--queue", "etl"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with spawned([*command, "--url", url, *options], cwd=tmp_path, env=environment):
        assert queue.add_and_wait("allowed", timeout=MINUTE) == expected


def test_the_command_line_refuses_what_is_not_a_package(url: str) -> None:
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "glidemq_orchestrate.spark"]
    done = subprocess.run(
        [*command, "--queue", "etl", "--url", url, "--allow-import", "my-package"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "allow_import: 'my-package' is not the name of a package" in " ".join(done.stderr.split())
