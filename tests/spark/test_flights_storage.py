from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from glidemq_orchestrate.spark.flights import steps
from glidemq_orchestrate.spark.flights.steps import publish_once, scratch, source_directory, sweep
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.processes import end, spawn

if TYPE_CHECKING:
    from tests.conftest import Eventually
    from tests.spark.conftest import MakeRun


def test_a_scratch_directory_is_removed_afterwards_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path) as directory:
            (directory / "half").write_text("done")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_only_scratch_directories_of_killed_processes_are_swept(
    tmp_path: Path, make_run: MakeRun, eventually: Eventually
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from glidemq_orchestrate.spark.flights import steps\n"
        "with steps.scratch(Path(sys.argv[1])) as folder: (folder / 'half').touch(); time.sleep(60)"
    )
    process = spawn([sys.executable, "-c", program, str(tmp_path)])
    try:
        eventually(lambda: [*tmp_path.glob(".tmp-*/half")], timeout=30)
        (left,) = tmp_path.glob(".tmp-*")
        old, young = tmp_path / ".tmp-old", tmp_path / ".tmp-young"  # without a lock
        for folder in (old, young):
            folder.mkdir()
        os.utime(old, (0, 0))
        sweep(tmp_path)
        assert {*tmp_path.iterdir()} == {left, young}
    finally:
        process.kill()
        process.wait()
        end(process)
    run = make_run({"location": str(tmp_path)})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "manifest.json").write_text("{}")
    steps.extract(cast("Any", None), run.ctx)
    assert {path.name for path in tmp_path.iterdir()} == {"raw", ".tmp-young"}


def test_the_first_to_publish_once_stays(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with scratch(tmp_path) as directory:
            (directory / "data").mkdir()
            (directory / "data" / "file").write_text(text)
            publish_once(directory / "data", tmp_path / "fixed")
    assert (tmp_path / "fixed" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["fixed"]


def test_extracting_twice_at_the_same_time_gives_one_whole_directory(
    tmp_path: Path, make_run: MakeRun
) -> None:
    no_spark = cast("Any", None)
    runs = [make_run({"location": f"file://{tmp_path}/a%20b"}, attempt=attempt) for attempt in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda run: steps.extract(no_spark, run.ctx), runs))
    assert results[0] == results[1] == results[2]
    assert results[0]["path"] == str(tmp_path / "a b" / "raw")
    assert [path.name for path in (tmp_path / "a b").iterdir()] == ["raw"]
    assert sorted(path.name for path in (tmp_path / "a b" / "raw").iterdir()) == [
        "airlines.csv", "airports.csv", "flights", "manifest.json", "planes.csv", "weather.csv",
    ]  # fmt: skip


def test_without_the_data_package_the_error_shows_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unrecoverable, match="pip install"):
        source_directory()
