"""What a Spark step reads and writes, as data sets of OpenLineage. No JVM."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.spark.lineage import Dataset, Lineage

DATA_SETS: list[tuple[Any, tuple[str, str]]] = [
    ("/data/clean/", ("file", "/data/clean")),
    ("/", ("file", "/")),
    ("file:///data/a%20b", ("file", "/data/a b")),
    ("s3://lake/raw/flights/", ("s3://lake", "raw/flights")),
    ("s3a://lake/raw", ("s3://lake", "raw")),
    ("gs://lake", ("gs://lake", "/")),
    ("hdfs://names:8020/data/raw", ("hdfs://names:8020", "/data/raw")),
    (
        "abfss://box@account.dfs.core.windows.net/raw",
        ("abfss://box@account.dfs.core.windows.net", "/raw"),
    ),
    ("https://user:secret@host/raw", ("https://host", "/raw")),
    (
        {"namespace": "postgres://db:5432", "name": "shop.public.orders"},
        ("postgres://db:5432", "shop.public.orders"),
    ),
]

NO_DATA_SETS: list[tuple[Any, str]] = [
    ({"inputs": "/data"}, "inputs must be a list"),
    ({"outputs": ["data/raw"]}, "each of outputs must be an absolute path"),
    ({"inputs": [{"namespace": "x"}]}, "each of inputs must be"),
    ({"inputs": [3]}, "each of inputs must be"),
    ({"input": []}, "must be an object with inputs and outputs"),
]


def read(**sides: Any) -> Lineage:
    return Lineage.of({"lineage": sides, "rows": 3})


def test_a_data_set_has_the_name_that_openlineage_gives_it(subtests: pytest.Subtests) -> None:
    for given, expected in DATA_SETS:
        with subtests.test(given=given):
            assert read(inputs=[given]).inputs == (Dataset(*expected),)
            assert read(outputs=[given, given]).outputs == (Dataset(*expected),)


def test_a_step_may_tell_nothing() -> None:
    told: list[Any] = [None, 1, [], {"rows": 3}]
    told += [{"lineage": none} for none in (None, {}, {"inputs": None})]
    assert {Lineage.of(value) for value in told} == {Lineage()}


def test_what_names_no_data_set_is_refused(subtests: pytest.Subtests) -> None:
    for sides, why in NO_DATA_SETS:
        with subtests.test(sides=sides):
            with pytest.raises(ValueError, match=why):
                read(**sides)
            with pytest.raises(ValueError, match="must be an object with inputs and outputs"):
                Lineage.of({"lineage": ["/data"]})


def test_what_a_step_writes_for_another_is_no_input_of_the_whole() -> None:
    steps = [
        read(inputs=["/raw"], outputs=["/clean"]),
        read(inputs=["/clean", "/raw"], outputs=["/report"]),
        Lineage(),
    ]
    whole = Lineage.together(iter(steps))
    assert [one.name for one in whole.inputs] == ["/raw"]
    assert [one.name for one in whole.outputs] == ["/clean", "/report"]
