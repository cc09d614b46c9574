"""What an accepted attempt still has to do in a table of Iceberg, and which rows its partitions are."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.published.locations.iceberg.conversion import Part, for_spark, rows_of
from glidemq_orchestrate.spark.published.locations.iceberg.table import TableChange, catalog_of
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

PARTS = ("p=v1", "p=v2", "p=v3")

FOLDERS: list[tuple[Part, str, list[str]]] = [
    (Part("day", "", "date"), "glidemq_day=v2026-01-31", ["2026-01-31"]),
    (Part("name", "", "string"), "glidemq_name=va%2Fb%3D c", ["a/b= c"]),
    (Part("name", "", "string"), "glidemq_name=v", ["EqualTo", "''"]),
    (Part("name", "", "string"), "glidemq_name=vn", ["EqualTo", "'n'"]),
    (Part("name", "", "string"), "glidemq_name=n", ["IsNull"]),
    (Part("at", "day", "timestamptz"), "glidemq_day_at=v2026-12-31", ["-31T00:00:00+00:", "2027-01-01"]),
    (Part("at", "hour", "timestamp"), "glidemq_hour_at=v2026-01-31-23", ["31T23:00:00'", "01T00:00:00'"]),
    (Part("on", "month", "date"), "glidemq_month_on=v2026-12", ["2026-12-01'", "2027-01-01'"]),
    (Part("on", "year", "date"), "glidemq_year_on=v2026", ["2026-01-01'", "2027-01-01'"]),
]  # fmt: skip

WRONG_TABLES: list[str] = ["iceberg:", "iceberg:orders", "iceberg:lake.orders", "iceberg:lake..orders"]


def change(epoch: int, replaces: str, parts: Iterable[str]) -> TableChange:
    return TableChange(f"{epoch}-{'0' * 12}", replaces, tuple(parts))


changes = st.lists(
    st.tuples(
        st.sampled_from(["all", "partitions", "nothing"]),
        st.lists(st.sampled_from(PARTS), unique=True, max_size=3),
    ),
    max_size=6,
).map(lambda found: [change(n + 1, *one) for n, one in enumerate(found)])


def done(table: dict[str, set[int]], one: TableChange) -> None:
    """What a commit leaves: for each partition the attempts that have rows there."""
    replaced = {
        "all": set(PARTS) - set(one.spared),
        "partitions": set(one.partitions or ()),
        "nothing": set(),
    }
    for part in replaced[one.replaces]:
        table[part] = set()
    for part in one.partitions or ():
        table[part].add(one.epoch)


@settings(max_examples=200)
@given(changes, st.randoms())
def test_a_table_is_as_if_attempts_had_been_committed_by_their_numbers(
    found: list[TableChange], order: random.Random
) -> None:
    in_order: dict[str, set[int]] = {part: set() for part in PARTS}
    for one in found:
        done(in_order, one)
    shuffled, before = list(found), list[TableChange]()
    order.shuffle(shuffled)
    table: dict[str, set[int]] = {part: set() for part in PARTS}
    for one in shuffled:
        if (left := one.left(before)) is not None:
            done(table, left)
            for other in left.restored(before):
                done(table, other)
        before.append(one)
    assert table == in_order


def test_a_summary_is_read_as_it_was_written() -> None:
    for one in (
        change(5, "partitions", PARTS),
        change(6, "nothing", ()),
        TableChange(change(7, "all", ()).name, "all", None),
    ):
        assert TableChange.read({**one.summary(), "total-records": "3"}) == one
    assert TableChange.read({"total-records": "3"}) is None
    assert TableChange.read({"glidemq.attempt": "of another kind"}) is None


def test_a_folder_names_the_rows_of_its_partition(subtests: pytest.Subtests) -> None:
    for part, folder, said in FOLDERS:
        with subtests.test(part=part):
            shown = repr(rows_of([folder], [part])).replace('"', "'")
            for text in said:
                assert text in shown, shown


def test_many_partitions_are_one_filter() -> None:
    parts = [Part("day", "", "string"), Part("hour", "", "int")]
    found = rows_of(
        [f"glidemq_day=v{day}/glidemq_hour=v{hour}" for day in range(300) for hour in range(24)], parts
    )
    assert repr(found).count("EqualTo") == 2 * 300 * 24


def test_a_table_needs_a_catalog_and_a_namespace(subtests: pytest.Subtests) -> None:
    for location in WRONG_TABLES:
        with (
            subtests.test(location=location),
            pytest.raises(Unrecoverable, match=r"catalog\.namespace\.table"),
        ):
            catalog_of(location)


def test_an_unknown_catalog_is_named_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="PYICEBERG_CATALOG__NOWHERE__URI"):
        catalog_of("iceberg:nowhere.sales.orders")


def test_spark_calls_s3_by_another_name() -> None:
    assert for_spark("s3://lake/x") == "s3a://lake/x"
    assert for_spark("gs://lake/x") == "gs://lake/x"
    assert for_spark("/lake/x") == "/lake/x"
