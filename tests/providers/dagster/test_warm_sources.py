"""What an import has read is noted, and so is what a forked child could not use of what it left."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dagster_glidemq.warm.hazards import Hazards
from dagster_glidemq.warm.sources import Sources


@pytest.fixture
def sources() -> Sources:
    return Sources()


def again(file: Path, text: str) -> None:
    """Write it anew, with the same length and time: only its number tells."""
    before = file.stat()
    beside = file.with_suffix(".new")
    beside.write_text(text)
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(file)


@pytest.mark.parametrize("name", ["defs.yaml", "conf.json", "query.sql", "manifest.bin", ".env"])
@pytest.mark.parametrize("later", ["changed", "replaced", "removed"])
def test_every_file_that_was_read_counts(sources: Sources, tmp_path: Path, name: str, later: str) -> None:
    file = tmp_path / name
    file.write_text("eu")
    with sources.recording():
        assert file.read_text() == "eu"
    assert not sources.have_changed(for_another_run=True)
    if later == "changed":
        file.write_text("us!")
    elif later == "replaced":
        again(file, "us")
    else:
        file.unlink()
    assert sources.have_changed(for_another_run=False)


def test_a_file_that_was_looked_for_in_vain_counts_when_it_is_there(sources: Sources, tmp_path: Path) -> None:
    with sources.recording(), pytest.raises(FileNotFoundError):
        (tmp_path / "local.yaml").read_text()
    assert not sources.have_changed(for_another_run=True)
    (tmp_path / "local.yaml").write_text("")
    assert sources.have_changed(for_another_run=False)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_looked_for_counts_for_the_next_run_when_it_comes_or_goes(
    sources: Sources,
    tmp_path: Path,
    is_there: bool,  # noqa: FBT001
) -> None:
    flag, made = tmp_path / "flag", tmp_path / "made" / "folder"
    if is_there:
        flag.touch()
    with sources.recording():
        assert flag.exists() is is_there
        made.mkdir(parents=True, exist_ok=True)
    flag.unlink() if is_there else flag.touch()
    assert not sources.have_changed(for_another_run=False)
    assert sources.have_changed(for_another_run=True)
    flag.touch() if is_there else flag.unlink()
    assert not sources.have_changed(for_another_run=True)


def test_a_new_entry_of_a_folder_counts_for_the_next_run_only(sources: Sources, tmp_path: Path) -> None:
    with sources.recording():
        assert list(tmp_path.glob("*.csv")) == []
    (tmp_path / "new.csv").write_text("1")
    assert not sources.have_changed(for_another_run=False)
    assert sources.have_changed(for_another_run=True)


def test_what_steps_write_beside_the_code_does_not_count(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "conf.json").write_text("{}")
    with sources.recording():
        (tmp_path / "conf.json").read_text()
    (tmp_path / "out.parquet").write_text("1")
    assert not sources.have_changed(for_another_run=True)
    (tmp_path / "conf.local.json").write_text("{}")
    assert sources.have_changed(for_another_run=True)


def test_what_is_noted_without_being_read_is_no_listing(sources: Sources, tmp_path: Path) -> None:
    with sources.recording():
        sources.note(str(tmp_path / ".env"))
    (tmp_path / "out.parquet").write_text("1")
    assert not sources.have_changed(for_another_run=True)
    (tmp_path / ".env").write_text("COLOUR=red")
    assert sources.have_changed(for_another_run=False)


def test_a_cache_that_the_import_itself_writes_does_not_count(sources: Sources, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    with sources.recording():
        assert not cache.exists()
        cache.write_text("1")
        cache.read_text()
        cache.write_text("22")
    assert not sources.have_changed(for_another_run=True)


def test_what_is_read_after_the_import_does_not_count(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("1")
    with sources.recording():
        pass
    (tmp_path / "data.json").read_text()
    (tmp_path / "data.json").write_text("22")
    assert not sources.have_changed(for_another_run=True)


def test_a_database_that_was_read_counts(sources: Sources, tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    with sources.recording(), sqlite3.connect(file) as found:
        found.execute("SELECT 1")
    found.close()
    assert not sources.have_changed(for_another_run=False)
    with sqlite3.connect(file) as found:
        found.execute("CREATE TABLE t (n)")
    found.close()
    assert sources.have_changed(for_another_run=False)


@pytest.mark.parametrize("how", ["socket", "program"])
def test_what_came_from_elsewhere_is_not_certain(sources: Sources, how: str) -> None:
    assert sources.is_certain
    with socket.create_server(("127.0.0.1", 0)) as server, sources.recording():
        if how == "socket":
            socket.create_connection(server.getsockname()).close()
        else:
            subprocess.run(["true"], check=True)
    assert not sources.is_certain


def test_another_process_goes_on_with_what_was_noted(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "conf.json").write_text("{}")
    with sources.recording():
        (tmp_path / "conf.json").read_text()
        list(tmp_path.iterdir())
    other = Sources()
    other.unpack(sources.packed())
    assert not other.have_changed(for_another_run=True)
    (tmp_path / "conf.json").unlink()
    assert other.have_changed(for_another_run=False)


def test_what_the_code_registers_for_the_end_of_its_process_is_noted(sources: Sources) -> None:
    def remove() -> None: ...

    with sources.recording():
        import atexit  # noqa: PLC0415  as code does

        atexit.register(remove)
        concurrent.futures.ThreadPoolExecutor(1)  # of Python's own
    atexit.unregister(remove)
    assert [name.rpartition(".")[2] for name in sources.at_exit] == ["remove"]
    found = Hazards()
    found.note()
    assert found.found((), ["remove"]) == "for the end of a process remove"


@pytest.fixture
def hazards() -> Hazards:
    found = Hazards()
    found.note()
    return found


@pytest.fixture
def thread(hazards: Hazards) -> Iterator[None]:
    end = threading.Event()
    started = threading.Thread(target=end.wait, name="poller")
    started.start()
    yield
    end.set()
    started.join()


def test_nothing_is_no_hazard(hazards: Hazards, tmp_path: Path) -> None:
    with (tmp_path / "log").open("a"), socket.socket(type=socket.SOCK_DGRAM):
        assert hazards.found() == ""


def test_what_children_would_share_or_remove_is_named(hazards: Hazards, tmp_path: Path) -> None:
    (tmp_path / "data.csv").touch()
    with (tmp_path / "data.csv").open():
        assert hazards.found() == f"what is open: the file {tmp_path / 'data.csv'}"
    with concurrent.futures.ProcessPoolExecutor(1):  # made, and not used yet
        assert "a pipe" in hazards.found()
    gc.collect()
    assert hazards.found() == ""
    with tempfile.TemporaryDirectory() as folder:
        assert hazards.found() == f"what goes when a process ends: TemporaryDirectory {folder}"


@pytest.mark.parametrize("made", [random.Random(1), np.random.default_rng(), np.random.RandomState()])
def test_a_generator_of_random_numbers_is_named(hazards: Hazards, made: object) -> None:
    module: Any = ModuleType("pipeline")
    module.SECURE, module.RNG = random.SystemRandom(), made
    assert hazards.found([module]) == "random numbers of pipeline.RNG"


@pytest.mark.usefixtures("thread")
def test_what_was_there_before_is_no_hazard(hazards: Hazards) -> None:
    assert "the threads poller" in hazards.found()
    hazards.note()
    assert hazards.found() == ""


def test_what_comes_while_it_is_passed_over_is_no_hazard(hazards: Hazards) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        with hazards.passing_over(), tempfile.TemporaryDirectory():
            passed = socket.create_server(("127.0.0.1", 0))
        assert hazards.found() == "what is open: a socket without a connection"
    with passed:
        assert hazards.found() == ""


def test_open_connections_and_databases_are_named(hazards: Hazards, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert f"a connection to 127.0.0.1:{port}" in hazards.found()
    database = sqlite3.connect(tmp_path / "app.db")
    database.execute("CREATE TABLE t (n)")
    assert f"the file {tmp_path / 'app.db'}" in hazards.found()
    database.close()
    assert hazards.found() == ""


@pytest.mark.long
def test_threads_that_end_before_a_fork_are_no_hazard_and_native_ones_are() -> None:
    code = """
from dagster_glidemq.warm.hazards import Hazards
hazards = Hazards(); hazards.note()
import numpy
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print(repr(hazards.found()))
import pyarrow.compute
print(pyarrow.cpu_count() and repr(hazards.found()))
import io, pyarrow.csv
pyarrow.csv.read_csv(io.BytesIO(b"a\\n" + b"1\\n" * 100_000))
print(repr(hazards.found()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "4"},
    )
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("''", "''")
    assert "the threads" in third


@pytest.mark.long
def test_the_worker_has_no_random_numbers_that_forked_processes_would_share() -> None:
    code = """
import pkgutil, sys
import glidemq_orchestrate.worker as worker
from dagster_glidemq.warm.hazards import Hazards
hazards = Hazards(); hazards.note()
found = pkgutil.walk_packages(worker.__path__, worker.__name__ + ".")
names = [one.name for one in found if not one.name.endswith("_process")]
print(repr(hazards.found([__import__(name, fromlist=["_"]) for name in names])))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "''"
