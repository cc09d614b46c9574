"""What the keeper of a driver and its workers share: the folder with its locks and lines, and the record."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import Context, RetryLater
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.submit import driver_folder
from glidemq_orchestrate.spark.submit.driver_folder import DriverFolder, Line, LineReader, LineWriter
from glidemq_orchestrate.spark.submit.output import Output
from glidemq_orchestrate.spark.submit.record import DriverRecord

NAME = f"glidemq-{'0' * 20}-1"

NO_RECORDS: list[Any] = [
    None,
    7,
    "x",
    [],
    {},
    {"driver": 1, "machine": "x"},
    {"driver": "../x", "machine": driver_folder.machine},
]

ODD_NUMBERS: list[dict[str, Any]] = [
    {"patience": "x"},
    {"patience": 1e300},
    {"alone_since": 9e99},
    {"patience": -5},
]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


class TestLines:
    def test_each_reader_goes_on_where_the_last_one_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver_folder, "FILE_BYTES", 50)
        writer, read = LineWriter(tmp_path), list[bytes]()
        for number in range(60):
            writer.write(b"line %d" % number, is_log=number % 2 == 0)
            if number % 7 == 0:
                reader = LineReader(tmp_path)
                earlier = [line.text for line in reader.earlier()]
                assert earlier == read[len(read) - len(earlier) :], "what was read last"
                assert bool(earlier) == bool(read)
                read += [line.text for line in reader.new()]
                reader.save_position()
        read += [line.text for line in LineReader(tmp_path).new()]
        assert read == [b"line %d" % number for number in range(60)]
        assert len(list(tmp_path.glob("lines.*"))) <= 2, "what was read is removed"
        writer.close()

    def test_a_line_that_is_being_written_waits(self, tmp_path: Path) -> None:
        (tmp_path / "lines.0").write_bytes(b"Lone\nOtw")
        reader = LineReader(tmp_path)
        assert list(reader.new()) == [Line(b"one", True)]
        with (tmp_path / "lines.0").open("ab") as file:
            file.write(b"o\n")
        assert list(reader.new()) == [Line(b"two", False)]

    def test_of_what_nobody_reads_the_newest_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver_folder, "FILE_BYTES", 10)
        monkeypatch.setattr(driver_folder, "MAX_FILES", 3)
        writer, reader = LineWriter(tmp_path), LineReader(tmp_path)
        for number in range(100):
            writer.write(b"%09d" % number, is_log=False)
        writer.close()
        assert reader.has_new()
        told, *kept = [line.text for line in reader.new()]
        assert told == b"about 1 MiB of lines before the next one were dropped"
        assert kept == [b"%09d" % number for number in (98, 99)]
        assert not reader.has_new()
        assert list(LineReader(tmp_path).new()) == []

    @pytest.mark.parametrize("seen", ["", "{", "[1]", "null", '["a", 0]', "[0, 99999]"])
    def test_a_damaged_position_harms_nobody(self, tmp_path: Path, seen: str) -> None:
        writer = LineWriter(tmp_path)
        writer.write(b"x", is_log=True)
        writer.close()
        (tmp_path / "seen").write_text(seen)
        assert len(list(LineReader(tmp_path).new())) <= 1


class TestFolders:
    def test_only_a_driver_that_is_kept_and_runs_the_same_is_taken_over(self) -> None:
        made = DriverFolder.create("tag-1", "program")
        keeper = DriverFolder(made.path)
        assert keeper.lock("keeper")
        assert DriverFolder.take_over("tag-1", "program") is None, "its worker has it"
        made.release()
        assert DriverFolder.take_over("tag-1", "other") is None
        assert DriverFolder.take_over("tag-2", "program") is None
        again = DriverFolder.take_over("tag-1", "program")
        assert again is not None
        assert again.is_locked("worker")
        again.release()
        keeper.release()
        assert DriverFolder.take_over("tag-1", "program") is None, "nobody keeps it"

    def test_what_nobody_needs_is_swept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held, left = DriverFolder.create("held-1", "x"), DriverFolder.create("left-1", "x")
        left.release()
        driver_folder.sweep()
        assert left.path.exists(), "it may just be made"
        monkeypatch.setattr(driver_folder, "_YOUNG_SECONDS", -1.0)
        driver_folder.sweep()
        assert (held.path.exists(), left.path.exists()) == (True, False)
        driver_folder.remove("held")
        assert not held.path.exists()

    def test_a_folder_that_is_open_to_others_is_refused(self) -> None:
        driver_folder.home().chmod(0o755)
        with pytest.raises(ConfigurationError, match="is not a private folder of this user"):
            driver_folder.home()

    def test_a_link_in_its_place_is_refused(self, tmp_path: Path) -> None:
        home = driver_folder.home()
        home.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigurationError, match="is not a private folder of this user"):
            driver_folder.home()

    def test_the_patience_is_a_duration(self, subtests: pytest.Subtests) -> None:
        for text, seconds in (("", 120.0), ("0", 0.0), ("7.5", 7.5), ("5m", 300.0)):
            with subtests.test(text=text):
                found = driver_folder.patience({driver_folder.PATIENCE_VARIABLE: text})
                assert found == timedelta(seconds=seconds)

    def test_any_other_patience_is_refused(self, subtests: pytest.Subtests) -> None:
        for text in ("-1", "x", "nan", "inf", "90000"):
            with (
                subtests.test(text=text),
                pytest.raises(ConfigurationError, match="GLIDEMQ_SPARK_DRIVER_PATIENCE must "),
            ):
                driver_folder.patience({driver_folder.PATIENCE_VARIABLE: text})


class TestRecords:
    def told(self, **more: Any) -> dict[str, Any]:
        return {"driver": NAME, "machine": "another", "host": "far", "patience": 20.0, **more}

    def waits(self, progress: Any, epoch: int) -> bool:
        ctx = Context("spark", "j", "spark.submit", 1, {}, {}, None, None, epoch=epoch)
        try:
            DriverRecord(progress).wait(epoch, Output(ctx, {}).begin)
        except RetryLater as exc:
            return not exc.counts
        return False

    def test_a_driver_elsewhere_is_waited_for_as_long_as_it_may_run(self) -> None:
        assert self.waits(self.told(), 1_000_000)
        since = self.told(alone_since=1_000_000)
        assert self.waits(since, 1_034_000), "its patience, 10 s of grace, and 5 s"
        assert not self.waits(since, 1_035_000)
        assert not self.waits(self.told(ended=True), 1_000_000)
        assert not self.waits(self.told(machine=driver_folder.machine()), 1_000_000)

    def test_whatever_else_is_stored_is_no_record(self, subtests: pytest.Subtests) -> None:
        for stored in NO_RECORDS:
            with subtests.test(stored=stored):
                progress = stored
                if isinstance(progress, dict) and callable(progress.get("machine")):
                    progress = progress | {"machine": driver_folder.machine()}
                assert not DriverRecord(progress).is_here
                assert not self.waits(progress, 1)

    def test_odd_numbers_never_make_it_wait_for_ever(self, subtests: pytest.Subtests) -> None:
        for odd in ODD_NUMBERS:
            with subtests.test(odd=odd):
                record = self.told(alone_since=1) | odd
                assert not self.waits(record, 90_000_000) or self.waits(record | {"alone_since": 1}, 1_000)
