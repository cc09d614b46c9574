from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from glidemq_orchestrate.spark.flights import steps
from glidemq_orchestrate.spark.flights.steps import source_directory
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from tests.spark.conftest import MakeRun


def test_extracting_twice_at_the_same_time_gives_two_whole_directories(
    tmp_path: Path, make_run: MakeRun
) -> None:
    no_spark = cast("Any", None)
    runs = [make_run({"location": f"file://{tmp_path}/a%20b"}, attempt=attempt) for attempt in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        results: list[Any] = list(pool.map(lambda run: steps.extract(no_spark, run.ctx), runs))
    assert results[0]["rows"] == results[1]["rows"]
    folders = {Path(result["path"]) for result in results}
    assert {*(tmp_path / "a b" / "raw" / "attempts").iterdir()} == folders
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        assert names >= {"airlines.csv", "airports.csv", "flights", "planes.csv", "weather.csv"}


def test_without_the_data_package_the_error_shows_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unrecoverable, match="pip install"):
        source_directory()
