"""Which code and settings the steps of a run have, and what their import may open."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext
from dagster._core.definitions.metadata.metadata_value import CodeLocationReconstructionMetadataValue
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.repository_definition import RepositoryLoadData
from dagster_glidemq.step_job import STEP_JOB, step_job_id

from glidemq_orchestrate import JobState
from tests.providers.dagster.stepping import Steps, wait_for
from tests.system.dagster_executor.launching import beside, told

pytestmark = [pytest.mark.system, pytest.mark.long]


def test_a_changed_file_is_imported_anew(steps: Steps, tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    code = Path(__file__).parents[2] / "providers" / "dagster" / "steps_app.py"
    file.write_text(code.read_text().replace("given * 10", "given * 10000"))
    repository = ReconstructableRepository.for_file(str(file), "defs", str(tmp_path))

    def collected() -> Any:
        with dg.execute_job(repository.get_reconstructable_job("everything"), steps.instance) as result:
            assert result.success
            return result.output_for_node("collect")

    with steps.worker():
        assert collected() == 20002
        (steps.path / "flaky").unlink()
        file.write_text(code.read_text().replace("given * 10", "given * 30"))
        assert collected() == 62
        (run,) = steps.instance.get_runs(limit=1)
        begun = steps.begun(repository, "everything")
        file.write_text("def broken(:")
        with steps.queue() as queue:
            data: Any = queue.get_job(step_job_id(run.run_id, "collect", 0)).data
            job_id = queue.add(STEP_JOB, {**data, "run_id": begun})
            wait_for(lambda: queue.get_job(job_id).state is JobState.FAILED, 60)
            assert "cannot load the code of the run: SyntaxError" in str(queue.get_job(job_id).failed_reason)
        assert any("SyntaxError" in event.message for event in steps.events(begun) if event.message)


CODE = """
import json, os
from pathlib import Path
import dagster as dg
from dagster_glidemq import glidemq_executor
HERE = Path(__file__).parent
REGION = json.loads((HERE / "conf.json").read_text())["region"]
COLOUR = os.environ.get("COLOUR")
# more
@dg.op
def say() -> str:
    with (HERE / "imports.log").open("a") as file:
        file.write(f"{os.getppid()}\\n")
    return f"{REGION} {COLOUR}"
@dg.job(executor_def=glidemq_executor)
def saying() -> None:
    say()
defs = dg.Definitions(jobs=[saying])
"""


@dataclass
class Location:
    """A code location whose files a test changes."""

    steps: Steps
    path: Path

    def say(self, found: RepositoryLoadData | None = None) -> tuple[Any, list[str]]:
        """What the op says in a new run, and what the log says of the import.

        Args:
            found: What the code server has found out for the run.
        """
        repository = ReconstructableRepository.for_file(
            str(self.path / "warm_location.py"), "defs", str(self.path)
        )
        job = repository.get_reconstructable_job("saying").with_repository_load_data(found)
        with dg.execute_job(job, self.steps.instance) as result:
            assert result.success, told(self.steps, result.run_id)()
            assert result.dagster_run.has_repository_load_data is (found is not None)
            logs = [entry.message for entry in self.steps.instance.all_logs(result.run_id)]
            return result.output_for_node("say"), [line for line in logs if "Importing the code" in line]


@pytest.fixture
def location(steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    # Dagster keeps what a code server has found out for one run, also for all later ones of this process.
    monkeypatch.setattr(DefinitionsLoadContext, "_instance", None)
    path = tmp_path / "location"
    path.mkdir()
    (path / "warm_location.py").write_text(CODE)
    (path / "conf.json").write_text('{"region": "eu"}')
    return Location(steps, path)


def test_a_later_run_has_the_settings_of_its_time(steps: Steps, location: Location) -> None:
    with steps.worker():
        assert location.say() == ("eu None", [])
        (location.path / "conf.json").write_text('{"region": "us"}')
        assert location.say() == ("us None", [])
        (location.path / ".env").write_text("COLOUR=red")
        assert location.say() == ("us red", [])


def test_runs_that_a_code_server_launches_share_an_import(steps: Steps, location: Location) -> None:
    metadata = {"table": CodeLocationReconstructionMetadataValue("orders")}
    found = RepositoryLoadData(reconstruction_metadata=metadata)
    with steps.worker():
        location.say(found)
        location.say(found)
    first, second = (location.path / "imports.log").read_text().splitlines()
    assert first == second


WIDE = """
import json, os
from pathlib import Path
import dagster as dg
from dagster_glidemq import glidemq_executor
HERE = Path(__file__).parent
SEEN = (HERE / "seen.txt").read_text()
@dg.op(out=dg.DynamicOut(int))
def spread():
    for number in range(12):
        yield dg.DynamicOutput(number, mapping_key=str(number))
@dg.op
def double(number: int) -> int:
    return number * 2
@dg.op
def total(numbers: list[int]) -> int:
    return sum(numbers)
@dg.job(executor_def=glidemq_executor)
def saying() -> None:
    total(spread().map(double).collect())
defs = dg.Definitions(jobs=[saying])
"""


def test_what_an_import_reads_may_change_all_the_time(steps: Steps, location: Location) -> None:
    def change() -> None:
        while not done.wait(0.01):
            with seen.open("a") as file:
                file.write("x")

    code, seen, done = location.path / "warm_location.py", location.path / "seen.txt", threading.Event()
    code.write_text(WIDE)
    seen.touch()
    repository = ReconstructableRepository.for_file(str(code), "defs", str(location.path))
    many = steps.worker("--queue", "dagster-steps", "--concurrency", "12", "--lease", "2")
    job = repository.get_reconstructable_job("saying")
    with many, beside(change):
        try:
            with dg.execute_job(job, steps.instance) as result:
                assert result.success, told(steps, result.run_id)()
        finally:
            done.set()


# The test imports the location too.
OPEN = """
import sqlite3, sys
from concurrent.futures import ThreadPoolExecutor
if "pytest" not in sys.modules:
    POOL = ThreadPoolExecutor(1, "reader")
    POOL.submit(int).result()
    DATABASE = sqlite3.connect(HERE / "app.db")
    DATABASE.execute("CREATE TABLE IF NOT EXISTS t (n)")
"""


def test_steps_use_threads_and_databases_that_their_import_has_opened(
    steps: Steps, location: Location
) -> None:
    code = location.path / "warm_location.py"
    code.write_text(CODE.replace("# more", OPEN).replace("return f", "POOL.submit(int).result(); return f"))
    with steps.worker():
        said, logged = location.say()
        assert said == "eu None"
        (line,) = logged
        assert "the threads reader_0" in line
        assert str(location.path / "app.db") in line
        assert "Fix: " in line
        code.write_text(CODE)
        assert location.say() == ("eu None", [])
