"""Each accepted attempt is in a table of Iceberg once, whoever commits it and when."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.spark import NotPublished, publish_iceberg, read_published, tidy
from glidemq_orchestrate.spark.published import publish as iceberg_publish
from glidemq_orchestrate.spark.published.locations.iceberg.table import TableChanged
from glidemq_orchestrate.spark.published.locations.store import LocalStore
from glidemq_orchestrate.spark.published.locations.version import name_of
from glidemq_orchestrate.spark.published.publish import write_counted
from glidemq_orchestrate.spark.published.reading import after_dependencies
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.spark.iceberg.lake import (
    TABLE,
    Nobody,
    commits,
    context,
    expire,
    made,
    others,
    published,
    rows,
    table,
    wrote,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestCommits:
    def test_only_what_was_accepted_is_there(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        with pytest.raises(LeaseLost):
            publish_iceberg(context(2_000, Nobody()), TABLE, spark.sql("select 2 as n"))
        wrote(spark, 3_000, "select 3 as n")
        assert rows() == [(1,)]
        assert commits() == 1

    def test_many_who_commit_it_at_once_commit_it_once(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 0 as n")
        result = wrote(spark, 2_000, "select 1 as n", replace="nothing")
        others = [wrote(spark, 3_000 + n, f"select {n} as n", replace="nothing") for n in (2, 3)]
        failed: list[BaseException] = []

        def make(one: Any) -> None:
            try:
                assert made(spark, one)
            except BaseException as exc:  # noqa: BLE001  shown by the test
                failed.append(exc)

        threads = [threading.Thread(target=make, args=[one]) for one in (result, result, result, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert rows() == [(0,), (1,), (2,), (3,)]
        assert commits() == 4

    def test_a_kill_between_the_commit_and_its_note_is_seen_by_the_next(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = wrote(spark, 1_000, "select 1 as n", replace="nothing")

        def killed(*_: Any) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "create", killed)
            with pytest.raises(OSError, match="killed"):
                made(spark, result)
        assert made(spark, result)
        assert rows() == [(1,)]
        assert commits() == 1

    @pytest.mark.long
    @pytest.mark.parametrize("replace", ["all", "partitions"])
    def test_a_late_commit_does_not_hide_a_later_attempt(self, spark: SparkSession, replace: str) -> None:
        published(spark, 1_000, "select 1 as n, 'a' as p", partition_by=["p"])
        published(spark, 1_500, "select 1 as n, 'z' as p", replace="nothing")
        late = wrote(spark, 2_000, "select 2 as n, explode(array('a', 'b', null)) as p", replace=replace)
        published(spark, 3_000, "select 3 as n, 'a' as p", replace="partitions")
        published(spark, 4_000, "select 4 as n, 'b' as p", replace="nothing")
        assert made(spark, late)
        others = [] if replace == "all" else [(1, "z")]
        assert rows() == sorted([*others, (2, "b"), (2, None), (3, "a"), (4, "b")], key=repr)
        published(spark, 5_000, "select 5 as n, 'c' as p")
        assert rows() == [(5, "c")]

    @pytest.mark.long
    @pytest.mark.parametrize("what", ["expired", "clock ahead", "both"])
    def test_an_accepted_attempt_is_committed_whatever_others_do(
        self, spark: SparkSession, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Snapshots are expired while it runs, or those of others have times of a clock that is ahead."""
        published(spark, 500, "select 0 as n", replace="nothing")
        late = wrote(spark, 1_000, "select 1 as n", replace="nothing")
        with monkeypatch.context() as patch:
            if what != "expired":
                patch.setattr(time, "time", lambda: time.monotonic() + 9e9)
            published(spark, 2_000, "select 2 as n", replace="nothing")
            others(3)
        if what != "clock ahead":
            expire()
        assert made(spark, late)
        assert rows() == [(0,), (1,), (2,), (3,)]
        assert made(spark, late)
        assert rows() == [(0,), (1,), (2,), (3,)]

    @pytest.mark.long
    def test_one_that_was_committed_is_known_when_its_snapshot_has_expired(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a worker that was killed before it wrote that down, and its rows may be replaced by now."""
        result = wrote(spark, 1_000, "select 1 as n", replace="nothing")
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "create", lambda *_: None)
            made(spark, result)
        others(2)
        table().delete("n = 1")
        expire()
        assert made(spark, result)
        assert rows() == [(2,)]

    @pytest.mark.long
    def test_a_late_commit_hides_no_later_attempt_whose_snapshot_has_expired(
        self, spark: SparkSession
    ) -> None:
        late = wrote(spark, 1_000, "select 1 as n, explode(array('a', 'b')) as p", partition_by=["p"])
        published(spark, 2_000, "select 2 as n, 'a' as p", replace="partitions")
        published(spark, 500, "select 0 as n, 'c' as p", replace="nothing")
        expire()
        assert made(spark, late)
        assert rows() == [(1, "b"), (2, "a")]

    @pytest.mark.long
    def test_what_is_noted_in_the_table_does_not_grow(self, spark: SparkSession) -> None:
        for number in range(4):
            published(spark, 1_000 + number, f"select {number} as n", replace="nothing")
        assert [name for name in table().properties if "glidemq" in name] == [
            f"glidemq.committed.{name_of(context(1_003))}"
        ]

    @pytest.mark.long
    @pytest.mark.parametrize("what", ["columns", "partitions", "another table"])
    def test_a_table_that_is_changed_while_a_step_writes_fails_the_step(
        self, spark: SparkSession, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not its commit, when the result was accepted and nobody learns of it."""
        published(spark, 1_000, "select 1L as n, 'a' as p")

        def changes(*given: Any) -> int:
            count = write_counted(*given)
            if what == "columns":
                with table().update_schema() as schema:
                    schema.rename_column("p", "q")
            elif what == "partitions":
                with table().update_spec() as spec:
                    spec.add_identity("p")
            else:
                load_catalog("lake").drop_table("sales.orders")
                load_catalog("lake").create_table("sales.orders", table_schema)
            return count

        table_schema = table().schema()
        with monkeypatch.context() as patch:
            patch.setattr(iceberg_publish, "write_counted", changes)
            with pytest.raises(TableChanged, match=r"iceberg:lake\.sales\.orders were changed while"):
                wrote(spark, 2_000, "select 2L as n, 'b' as p", replace="nothing")

    @pytest.mark.long
    def test_files_that_went_before_the_commit_are_told(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        late = wrote(spark, 2_000, "select 2 as n")
        for file in Path(late["published"]["path"]).glob("*.parquet"):
            file.unlink()  # as one that removes files that Iceberg does not know would
        with pytest.raises(NotPublished, match=r"1 of 1 files of attempt .* were removed before"):
            made(spark, late)
        assert rows() == [(1,)]

    @pytest.mark.long
    def test_attempts_that_never_counted_are_removed_and_no_other(self, spark: SparkSession) -> None:
        result = published(spark, 1_000, "select 1 as n")
        never = wrote(spark, 2_000, "select 2 as n")
        noted = Path(table().location().removeprefix("file://"), "versions")
        for file in noted.iterdir():
            file.unlink()  # as one that removes files that Iceberg does not know would
        assert tidy(f"iceberg:{TABLE}", grace=timedelta(0)) == 1
        assert not Path(never["published"]["path"]).exists()
        assert rows() == [(1,)]
        assert read_published(spark, result).count() == 1
        with pytest.raises(Unrecoverable, match="expire these"):
            tidy(f"iceberg:{TABLE}", replaced=timedelta(0))

    @pytest.mark.long
    def test_a_step_reads_at_least_what_the_steps_before_it_have_published(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        new = wrote(spark, 2_000, "select id as n from range(5)")
        with after_dependencies({"clean": new}, spark):
            assert read_published(spark, f"iceberg:{TABLE}").count() == 5
