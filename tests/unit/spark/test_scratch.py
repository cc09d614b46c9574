"""Folders for temporary files of Spark: who holds them, and who removes them."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from glidemq_orchestrate.lifeline.lifeline import patched
from glidemq_orchestrate.spark.setup.jvm import Scratch, directories, sweep

OWNER = """
import sys
from glidemq_orchestrate.spark.setup.jvm import Scratch
kept = Scratch({"spark.local.dir": sys.argv[1]})
print(kept.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)


def test_directories_are_those_that_spark_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert directories({}) == [Path(tempfile.gettempdir())]
    assert directories({"spark.local.dir": "/a, /b c,"}) == [Path("/a"), Path("/b c")]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/d")
    assert directories({"spark.local.dir": "/a"}) == [Path("/d")]


def test_each_directory_gets_a_folder_until_it_is_closed(tmp_path: Path) -> None:
    conf = {"spark.local.dir": f"{tmp_path}/new/one,{tmp_path}"}
    kept = Scratch(conf)
    assert [folder.parent for folder in kept.folders] == [tmp_path / "new" / "one", tmp_path]
    assert {folder.stat().st_mode & 0o777 for folder in kept.folders} == {0o700}
    (kept.folder / "blocks").mkdir()
    sweep(conf)
    assert (kept.folder / "blocks").is_dir()
    for _ in range(2):
        kept.close()
        assert not any(folder.exists() for folder in kept.folders)


def test_a_driver_is_told_and_what_the_user_has_set_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Djava.io.tmpdir=/mine")
    odd = tmp_path / 'a "b" \\c'
    kept = Scratch({"spark.local.dir": f"{odd},{tmp_path}"})
    with patched(kept.environment()):
        given = dict(os.environ)
    assert given["SPARK_LOCAL_DIRS"] == ",".join(map(str, kept.folders))
    assert shlex.split(given["SPARK_SUBMIT_OPTS"]) == [
        f"-Djava.io.tmpdir={kept.folder}",
        "-Djava.io.tmpdir=/mine",
    ]
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Djava.io.tmpdir=/mine"
    assert "SPARK_LOCAL_DIRS" not in os.environ
    kept.close()


def test_what_a_killed_owner_has_left_is_removed(tmp_path: Path) -> None:
    conf = {"spark.local.dir": str(tmp_path)}
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        (folder / "blocks").mkdir()
        sweep(conf)
        assert (folder / "blocks").is_dir()
        owner.kill()
    sweep(conf)
    assert not folder.exists()


def test_what_is_not_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target := tmp_path / "target").mkdir()
    (tmp_path / "glidemq-spark-link").symlink_to(target)
    (tmp_path / "glidemq-spark-file").touch()
    (theirs := tmp_path / "glidemq-spark-theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep({"spark.local.dir": str(tmp_path)})
    assert target.is_dir()
    assert theirs.is_dir()
    assert (tmp_path / "glidemq-spark-file").is_file()
    monkeypatch.undo()
    sweep({"spark.local.dir": str(tmp_path)})
    assert target.is_dir()
    assert not theirs.exists()


def test_a_directory_that_cannot_be_used_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        kept = Scratch({"spark.local.dir": f"{tmp_path}/file/below,{tmp_path}"})
    assert [folder.parent for folder in kept.folders] == [tmp_path]
    assert "Spark cannot use" in caplog.text
    kept.close()
    kept = Scratch({"spark.local.dir": f"{tmp_path}/file/below"})
    assert [folder.parent for folder in kept.folders] == [Path(tempfile.gettempdir())]
    kept.close()


def test_a_folder_that_a_sweep_removes_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    lock = fcntl.flock

    def swept(descriptor: int, how: int) -> None:
        if len(made) < 2:
            made.extend(tmp_path.iterdir())
            made[-1].rmdir()
            made.append(made[-1])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", swept)
    kept = Scratch({"spark.local.dir": str(tmp_path)})
    assert kept.folder.is_dir()
    assert kept.folder not in made
    kept.close()


def test_where_folders_cannot_be_locked_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match="No locks"):
        Scratch({})
    assert not list(tmp_path.iterdir())
