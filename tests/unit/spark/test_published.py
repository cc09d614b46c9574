"""Versions of tables and folders: which ones readers see, who makes them, what is removed. No Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate import Context
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.spark import NotPublished, publish_files, published_path, tidy
from glidemq_orchestrate.spark.published import acceptance
from glidemq_orchestrate.spark.published.acceptance import accepted
from glidemq_orchestrate.spark.published.locations import target as cleanup
from glidemq_orchestrate.spark.published.locations.store import LocalStore, store_of
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.spark.published.locations.version import (
    Publication,
    Version,
    epoch_of,
    name_of,
    newest_first,
    publications_in,
    visible,
)
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

DAY_MS = 86_400_000

WRONG_LOCATIONS: list[tuple[str, str]] = [
    ("", "must be a directory or URI"),
    ("/data/{x}", "in a path as a pattern"),
    ("file:///data/%5Bx%5D", "in a path as a pattern"),
    ("s3a://bucket/x", "needs a Spark session with a JVM"),
]


class Owner(Reporter):
    """A worker that knows whether the attempt owns its job."""

    is_lost = False

    def check_owner(self) -> None:
        if self.is_lost:
            raise LeaseLost("this attempt no longer owns job j")


def context(epoch: int | None = None, job: str = "j", token: str = "t") -> Context:
    epoch = time.time_ns() // 1_000_000 if epoch is None else epoch
    return Context("etl", job, "spark.python", 1, {}, {}, None, None, Owner(), epoch=epoch, token=token)


def ended(ctx: Context, kind: str = "completed") -> None:
    """The server's verdict on an attempt, and the end of what it starts."""
    before = set(threading.enumerate())
    accepted.on_job(JobEvent(kind, ctx.queue, ctx.job_id, ctx.name, 1, None, None, epoch=ctx.epoch))
    for thread in set(threading.enumerate()) - before:
        thread.join()


def write(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "report.txt").write_text(text)


def published(location: Path, text: str, ctx: Context | None = None) -> Any:
    ctx = ctx or context()
    result = publish_files(ctx, str(location), write(text))
    ended(ctx)
    return result


def shown(source: Any) -> str:
    return (published_path(source if isinstance(source, dict) else str(source)) / "report.txt").read_text()


@pytest.fixture(autouse=True)
def _tidied_never() -> Iterator[None]:
    yield
    cleanup._tidied.clear()


class TestVersions:
    def test_the_name_of_an_attempt_is_its_own_and_orders_it(self) -> None:
        names = [
            name_of(context(epoch, job, token))
            for epoch in (9, 10, 1_795_608_250_123)
            for job, token in (("j", "t"), ("k", "t"), ("j", "u"))
        ]
        assert len(set(names)) == 9
        assert [epoch_of(name) for name in newest_first([*names, "x", ".tmp", "9-zz", "9-abc"])] == (
            [1_795_608_250_123] * 3 + [10] * 3 + [9] * 3
        )
        with pytest.raises(NotPublished, match="only a job that a worker runs"):
            name_of(context(0))

    @given(
        st.lists(
            st.tuples(st.lists(st.sampled_from(["d=1", "d=2", "d=3"]), unique=True), st.booleans()),
            max_size=8,
        )
    )
    def test_readers_see_what_writing_one_after_the_other_would_leave(
        self, writes: list[tuple[list[str], bool]]
    ) -> None:
        left: dict[str, str] = {}
        made = []
        for number, (parts, replaces_all) in enumerate(writes):
            name = f"{number}-{'0' * 12}"
            made.append(Version(name, "parquet", {}, tuple(parts), replaces_all))
            left = {**({} if replaces_all else left), **dict.fromkeys(parts, name)}
        seen = [(part, version.name) for version, parts in visible(made[::-1]) for part in parts or ()]
        assert dict(seen) == left
        assert len(seen) == len(left)

    def test_an_unpartitioned_version_hides_all_before_it(self) -> None:
        old, new = Version("1-" + "0" * 12, "parquet", {}), Version("2-" + "0" * 12, "parquet", {})
        assert list(visible([new, old])) == [(new, None)]

    def test_a_version_is_read_as_it_was_written_and_anything_else_is_refused(self) -> None:
        version = Version("7-0123456789ab", "csv", {"type": "struct"}, ("d=1",), False, {"header": "true"})
        assert Version.read(version.text()) == version
        for text in ("", "7", "{}", '{"name": "x"}', version.text().replace("7-0123456789ab", "x")):
            with pytest.raises(ValueError):  # noqa: PT011  of JSON, or ours
                Version.read(text)

    def test_what_a_result_names_is_found_also_inside_of_it(self) -> None:
        one, two = Publication("/t", "7-0123456789ab"), Publication("s3a://b/t", "8-0123456789ab")
        result: Any = {"rows": 3, "tables": [one.result(rows=3), {"deep": two.result()}], "x": None}
        assert list(publications_in(result)) == [one, two]
        assert list(publications_in({"published": {"location": 7, "name": "7-0123456789ab"}})) == []
        assert list(publications_in({"published": {"location": "/t", "name": "../../etc"}})) == []


class TestAcceptance:
    def test_only_what_was_accepted_is_seen(self, tmp_path: Path) -> None:
        first, second, third = (context(epoch) for epoch in (1, 2, 3))
        publish_files(first, str(tmp_path), write("first"))
        with pytest.raises(NotPublished, match="nothing is published at"):
            published_path(str(tmp_path))
        ended(first, "active")
        ended(first)
        publish_files(second, str(tmp_path), write("second"))
        ended(second, "lost")
        assert shown(tmp_path) == "first"
        publish_files(third, str(tmp_path), write("third"))
        ended(third)
        ended(second)  # it is forgotten
        assert shown(tmp_path) == "third"

    def test_a_late_acceptance_does_not_hide_a_later_attempt(self, tmp_path: Path) -> None:
        now = time.time_ns() // 1_000_000
        early = context(now)
        result = publish_files(early, str(tmp_path), write("early"))
        published(tmp_path, "late", context(now + 1))
        ended(early)
        assert shown(tmp_path) == "late"
        assert shown(result) == "early"

    def test_an_attempt_that_lost_its_job_is_told_and_counts_for_nobody(self, tmp_path: Path) -> None:
        ctx = context()
        owner: Any = ctx.reporter
        owner.is_lost = True
        with pytest.raises(LeaseLost):
            publish_files(ctx, str(tmp_path), write("late"))
        ended(ctx)
        with pytest.raises(NotPublished):
            published_path(str(tmp_path))

    def test_a_reader_makes_the_version_that_the_worker_could_not(self, tmp_path: Path) -> None:
        result = publish_files(context(), str(tmp_path), write("accepted"))
        assert shown({"more": [result]}) == "accepted"
        assert shown(tmp_path) == "accepted"

    def test_a_store_that_is_away_is_asked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries: list[str] = []

        make = Folder.make

        def fails_twice(folder: Folder, name: str) -> bool:
            tries.append(name)
            if len(tries) < 3:
                raise OSError("away")
            return make(folder, name)

        monkeypatch.setattr(Folder, "make", fails_twice)
        monkeypatch.setattr(acceptance, "PAUSES", (0.0, 0.0, 0.0))
        published(tmp_path, "at last")
        assert shown(tmp_path) == "at last"
        assert len(tries) == 3

    def test_one_that_stays_away_is_logged_and_harms_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(*_: Any) -> bool:
            raise OSError("away")

        monkeypatch.setattr(Folder, "make", fails)
        monkeypatch.setattr(acceptance, "PAUSES", ())
        published(tmp_path, "x")
        assert "was accepted but cannot be made" in caplog.text

    def test_many_make_the_same_version_at_once(self, tmp_path: Path) -> None:
        result = publish_files(context(), str(tmp_path), write("x"))
        (place,) = publications_in(result)
        folder, made = Folder(LocalStore(tmp_path)), list[bool]()
        threads = [threading.Thread(target=lambda: made.append(folder.make(place.name))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [True] * 8
        assert folder.store.names("versions") == [f"{place.name}.json"]


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(location: Path, gap: str) -> None:
    """An attempt in a process that is killed in one of the gaps of a publication; its result was accepted."""
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it was not killed"
        return
    try:
        ctx, link, create = context(), os.link, LocalStore.create
        vars(ctx.reporter)["check_owner"] = die if gap == "before the check" else lambda: None

        def linked(source: Path, target: Path) -> None:
            if gap == f"before the link in {target.parent.name}":
                die()
            link(source, target)
            if gap == f"after the link in {target.parent.name}":
                die()

        def created(store: LocalStore, path: str, text: str) -> None:
            if gap == "before the manifest":
                die()
            create(store, path, text)

        os.link, LocalStore.create = linked, created  # type: ignore[assignment, method-assign]

        def half(folder: Path) -> None:
            (folder / "report.txt").write_text("late")
            if gap == "while it writes":
                die()

        result: Any = publish_files(ctx, str(location), half)
        if gap == "before the acceptance":
            die()
        (place,) = publications_in(result)
        Folder(LocalStore(location)).make(place.name)
    finally:
        os._exit(1)


GAPS = {
    "while it writes": "first",
    "before the manifest": "first",
    "before the check": "first",
    "before the acceptance": "first",
    "before the link in versions": "first",
    "after the link in versions": "late",
}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(("gap", "seen"), GAPS.items())
def test_a_kill_leaves_nothing_that_readers_see_but_what_was_accepted(
    tmp_path: Path, gap: str, seen: str
) -> None:
    published(tmp_path, "first", context(time.time_ns() // 1_000_000 - 1_000))
    killed(tmp_path, gap)
    assert shown(tmp_path) == seen
    if gap == "before the link in versions":  # it was accepted: any later worker knows it by its result
        store = LocalStore(tmp_path)
        assert Folder(store).make(newest_first(store.names("attempts"))[0])
        assert shown(tmp_path) == "late"
    else:
        assert tidy(str(tmp_path), grace=timedelta(0)) == (0 if seen == "late" else 1)
    published(tmp_path, "next", context(time.time_ns() // 1_000_000 + 1_000))
    assert shown(tmp_path) == "next"


class TestFiles:
    def test_what_a_failed_writer_has_written_is_removed(self, tmp_path: Path) -> None:
        def broken(folder: Path) -> None:
            (folder / "half").touch()
            raise KeyError("x")

        with pytest.raises(KeyError):
            publish_files(context(), str(tmp_path), broken)
        assert LocalStore(tmp_path).names("attempts") == []

    def test_a_location_that_cannot_be_one_is_refused(self, subtests: pytest.Subtests) -> None:
        for location, said in WRONG_LOCATIONS:
            with subtests.test(location=location), pytest.raises(Unrecoverable, match=said):
                publish_files(context(), location, write("x"))

    def test_a_result_with_no_or_several_publications_is_refused(self, tmp_path: Path) -> None:
        result = published(tmp_path, "x")
        several: list[Any] = [{"rows": 1}, [result, result]]
        for source in several:
            with pytest.raises(NotPublished, match="publications, not one"):
                published_path(source)

    def test_a_file_uri_is_a_directory(self, tmp_path: Path) -> None:
        assert store_of((tmp_path / "a b").as_uri(), None).location == str(tmp_path / "a b")


class TestTidying:
    def test_attempts_that_never_counted_go_after_a_grace_of_the_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time_ns() // 1_000_000
        old, young = context(now - 8 * DAY_MS, "old"), context(now - DAY_MS, "young")
        published(tmp_path, "before", context(now - 30 * DAY_MS, "before"))
        cleanup._tidied.clear()
        for ctx in (old, young):
            publish_files(ctx, str(tmp_path), write("x"))
        kept = context(now, "accepted")
        with monkeypatch.context() as patch:  # the clock of this machine is wrong
            patch.setattr(time, "time", lambda: now / 1000 + 9 * DAY_MS)
            published(tmp_path, "kept", kept)  # which tidies
        left = LocalStore(tmp_path).names("attempts")
        assert sorted(left) == sorted(map(name_of, (young, kept, context(now - 30 * DAY_MS, "before"))))
        assert tidy(str(tmp_path)) == 0
        assert tidy(str(tmp_path), grace=timedelta(0)) == 1
        assert shown(tmp_path) == "kept"

    def test_half_written_versions_of_a_kill_go_after_the_grace(self, tmp_path: Path) -> None:
        now = time.time_ns() // 1_000_000
        published(tmp_path, "x", context(now))
        halves = [
            f"{sign}{epoch}-0123456789ab.json.0a1b2c3d"
            for sign in "._"
            for epoch in (now - 8 * DAY_MS, now - DAY_MS)
        ]
        for half in halves:
            (tmp_path / "versions" / half).touch()
        assert tidy(str(tmp_path)) == 0
        left = [path.name for path in (tmp_path / "versions").iterdir() if path.suffix != ".json"]
        assert sorted(left) == sorted([halves[1], halves[3]])
        assert shown(tmp_path) == "x"

    def test_replaced_versions_go_only_if_that_is_asked_for(self, tmp_path: Path) -> None:
        now = time.time_ns() // 1_000_000
        results = [published(tmp_path, str(n), context(now - (3 - n) * DAY_MS)) for n in range(3)]
        assert tidy(str(tmp_path)) == 0
        assert tidy(str(tmp_path), replaced=timedelta(days=2, hours=1)) == 1
        assert shown(results[1]) == "1"
        assert tidy(str(tmp_path), replaced=timedelta(0)) == 1
        assert shown(tmp_path) == shown(results[2]) == "2"
        with pytest.raises(NotPublished, match="is gone"):
            published_path(results[0])

    def test_a_location_that_is_not_there_is_tidy(self, tmp_path: Path) -> None:
        assert tidy(str(tmp_path / "none")) == 0
