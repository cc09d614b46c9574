"""Runs on PostgreSQL, where an event may appear after one that was written later.

``make dagster`` and ``make dagster-matrix`` run it in the environment of the latter: no dagster-postgres fits
the newest Dagster for a while after each release.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg2
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from glidemq_orchestrate import EmbeddedServer
from tests.providers.dagster.stepping import Steps, place_of
from tests.system.postgres import running_postgres

pytestmark = [pytest.mark.system, pytest.mark.long]

CODE = """
import dagster as dg
from dagster_glidemq import glidemq_executor

@dg.op(out=dg.DynamicOut(int))
def spread():
    for number in range(8):
        yield dg.DynamicOutput(number, mapping_key=str(number))

@dg.op(out={"some": dg.Out(int, is_required=False)})
def double(number: int):
    yield dg.Output(number * 2, "some")

@dg.op
def total(numbers: list[int]) -> int:
    return sum(numbers)

@dg.job(executor_def=glidemq_executor)
def wide():
    total(spread().map(double).collect())

defs = dg.Definitions(jobs=[wide])
"""
# Numbers are given before the trigger, so others with greater ones are committed meanwhile.
LATE = """
CREATE FUNCTION late() RETURNS trigger AS $$
BEGIN
  IF NEW.dagster_event_type IN ('STEP_OUTPUT', 'STEP_SUCCESS') AND NEW.step_key ~ '^double.[0246].$' THEN
    PERFORM pg_sleep(0.7);
  END IF;
  RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER late BEFORE INSERT ON event_logs FOR EACH ROW EXECUTE FUNCTION late();
"""


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgres("dagster") as url:
        yield url


@pytest.fixture
def steps(server: EmbeddedServer, tmp_path: Path, database: str) -> Iterator[Steps]:
    with place_of(server, tmp_path, storage={"postgres": {"postgres_url": database}}) as place:
        yield place


def test_events_that_are_committed_late_are_not_missed(steps: Steps, tmp_path: Path, database: str) -> None:
    with psycopg2.connect(database.replace("+psycopg2", "")) as connection, connection.cursor() as cursor:
        cursor.execute(LATE)
    (tmp_path / "code.py").write_text(CODE)
    repository = ReconstructableRepository.for_file(str(tmp_path / "code.py"), "defs", str(tmp_path))
    done = threading.Event()

    def end_if_it_hangs() -> None:
        if not done.wait(240):
            steps.instance.report_run_canceled(steps.instance.get_runs(limit=1)[0])

    threading.Thread(target=end_if_it_hangs, daemon=True).start()
    with steps.worker("--queue", "dagster-steps", "--concurrency", "4", "--lease", "2"):
        began = time.monotonic()
        with dg.execute_job(repository.get_reconstructable_job("wide"), steps.instance) as result:
            took = time.monotonic() - began
            done.set()
            assert result.success, took
            assert result.output_for_node("total") == 56
            events = Counter(str(event.step_key) for event in result.all_events if event.is_step_success)
    assert set(events.values()) == {1}
    assert len(events) == 10
