"""Statements of Spark SQL as steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.spark.failures import StepFailed
from glidemq_orchestrate.spark.handler import run_python_step
from glidemq_orchestrate.spark.steps.sql import ALLOW_VARIABLE, SQL_JOB
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.conftest import RunWorker
from tests.spark.conftest import MakeRun

pytestmark = pytest.mark.usefixtures("spark")

Sql = Callable[..., Any]

HAS_LISTS: Final = int(pyspark.__version__.partition(".")[0]) >= 4

PARAMETERS: list[tuple[Any, str]] = [
    (2**63 - 1, "bigint"),
    ("a", "string"),
]

LISTS: list[tuple[Any, str]] = [
    ([1, 2.5], "array<double>"),
    ([1, -(2**63), 2**63 - 1], "array<bigint>"),
    ([1, 2], "array<int>"),
    (["a"], "array<string>"),
    ([None], "array<void>"),
    ([], "array<void>"),
]

NO_LISTS: list[tuple[Any, str]] = [
    ([None, 1], r"the list a of args has int and null: .* without null; .* array\(:a, :b\)"),
    (["x", 1], "the list a of args has int and str"),
    ([True, 1], "the list a of args has bool and int"),
    ([1, -(10**30)], "a number of more than 64 bits"),
]

NO_STATEMENTS: list[tuple[Any, str]] = [
    (None, "needs an object"),
    ({}, "needs either file or sql"),
    ({"file": "sql_package:queries/half.sql", "sql": "select 1"}, "needs either file or sql"),
    ({"file": "queries.half.sql"}, "must be written package:path"),
    ({"file": "sql_package:../secret.sql"}, "must be written package:path"),
    ({"file": "sql_package:/etc/passwd"}, "must be written package:path"),
    ({"file": "sql_package:__init__.py"}, "must be written package:path"),
    ({"file": "sql_package:a\0b.sql"}, "has no file a\0b.sql"),
    (
        {"sql": "select 1", "publish": {"location": "/x", "partition_by": "day"}},
        "publish must be an object of",
    ),
    ({"sql": "select 1", "publish": {"location": "/x", "format": "jdbc"}}, "format must be one of avro"),
    ({"file": "os:x.sql"}, "may not import os"),
    ({"file": "sql_package:queries/none.sql"}, "the package sql_package has no file queries/none.sql"),
    ({"sql": "select 1", "arguments": {}}, "no field arguments; parameters go under args"),
    ({"sql": "select 1", "args": [1]}, "args must be an object"),
    ({"sql": "select 1", "args": {"a": {"b": 1}}}, "args must be an object"),
    ({"sql": "select :a", "args": {"a": 2**63}}, "a number of more than 64 bits: pass it as"),
    ({"sql": "select 1", "args": {"a b": 1}}, "args must be an object"),
    ({"sql": "select 1", "tables": {"a": {"node": "no"}}}, "table a must be a location"),
    ({"sql": "select 1", "tables": ["a"]}, "tables must be an object"),
    ({"sql": "select 1", "publish": {"mode": "x"}}, "publish must be an object of"),
]


@pytest.fixture(scope="module", autouse=True)
def _package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("package")
    queries = folder / "sql_package" / "queries"
    queries.mkdir(parents=True)
    (folder / "sql_package" / "__init__.py").touch()
    (folder / "secret.sql").write_text("select 'secret'")
    (queries / "half.sql").write_text(
        "-- by parameter\nselect id, :half as half from range(4) where id % 2 = :half"
    )
    (queries / "marked.sql").write_text("select 1 as one", encoding="utf-8-sig")
    (queries / "total.sql").write_text("select sum(id) as total from halves where id < :most")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture
def sql(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Sql:
    monkeypatch.setenv(ALLOW_VARIABLE, "1")

    def run(data: Any, inputs: Any = None) -> Any:
        made = make_run(data, inputs, allow_import=["sql_package"])
        made.ctx.name = SQL_JOB
        return run_python_step(made.ctx)

    return run


def test_a_file_of_an_allowed_package_runs_with_its_parameters(sql: Sql) -> None:
    found = sql({"file": "sql_package:queries/half.sql", "args": {"half": 1}})
    assert found == {"columns": ["id", "half"], "rows": [[1, 1], [3, 1]], "more": False}


def test_parameters_are_values_and_never_text(sql: Sql) -> None:
    odd = "x' or '1' = '1"
    assert sql({"sql": "select :a as a, :b as b", "args": {"a": odd, "b": 2}})["rows"] == [[odd, 2]]
    found = sql({"sql": "select :a as a", "inputs": {"node": "n", "to": ["a"]}}, {"n": 7})
    assert found["rows"] == [[7]]


@pytest.mark.long
def test_the_type_of_a_parameter_follows_from_its_values(sql: Sql, subtests: pytest.Subtests) -> None:
    for given, kind in [*PARAMETERS, *(LISTS if HAS_LISTS else [])]:
        with subtests.test(given=given):
            found = sql({"sql": "select :a as a, typeof(:a) as kind", "args": {"a": given}})["rows"]
            assert found == [[given, kind]]


def test_a_list_of_several_types_or_on_spark_3_is_refused(sql: Sql, subtests: pytest.Subtests) -> None:
    for given, expected in NO_LISTS if HAS_LISTS else [(one, "needs Spark 4") for one, _ in LISTS + NO_LISTS]:
        with subtests.test(given=given), pytest.raises(Unrecoverable, match=expected):
            sql({"sql": "select :a", "args": {"a": given}})


def test_the_mark_at_the_beginning_of_a_file_is_no_part_of_the_statement(sql: Sql) -> None:
    assert sql({"file": "sql_package:queries/marked.sql"})["rows"] == [[1]]


def test_values_are_told_as_json_and_no_more_than_a_hundred_rows(sql: Sql) -> None:
    text = """select date'2026-01-02' as d, cast('1.50' as decimal(5, 2)) as e, double('NaN') as n,
              named_struct('a', 1, 'b', array('x')) as s, map('k', timestamp'2026-01-02 03:04:05') as m,
              x'0aff' as z"""
    assert sql({"sql": text})["rows"] == [
        ["2026-01-02", "1.50", "nan", {"a": 1, "b": ["x"]}, {"k": "2026-01-02T03:04:05"}, "0aff"]
    ]
    many = sql({"sql": "select id from range(1000)"})
    assert (len(many["rows"]), many["more"]) == (100, True)


def test_a_payload_that_is_no_statement_fails_for_good(sql: Sql, subtests: pytest.Subtests) -> None:
    for data, expected in NO_STATEMENTS:
        with subtests.test(data=data), pytest.raises(Unrecoverable, match=expected):
            sql(data)


def test_lists_need_spark_4(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    assert sql({"sql": "select :a as a", "args": {"a": 1}})["rows"] == [[1]]
    with pytest.raises(InvalidCall, match=r"the list a of args needs Spark 4; .* array\(:a, :b\)"):
        sql({"sql": "select :a", "args": {"a": [1]}})


def test_a_text_runs_only_where_the_worker_allows_it(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0", "yes"):
        monkeypatch.setenv(ALLOW_VARIABLE, value)
        with pytest.raises(InvalidCall, match=f"any Java method; {ALLOW_VARIABLE}=1 allows it"):
            sql({"sql": "select 1"})


def test_an_error_of_the_statement_is_told_without_its_text(sql: Sql) -> None:
    with pytest.raises(StepFailed, match="TABLE_OR_VIEW_NOT_FOUND") as caught:
        sql({"sql": "select 'hunter2' from no_such_table"})
    assert "hunter2" not in str(caught.value)


def test_statements_are_nodes_that_read_and_publish_tables(
    url: str, run_worker: RunWorker, tmp_path: Path, warm_handlers: Handlers
) -> None:
    run_worker(["spark"], warm_handlers, allow_import=["sql_package"])
    half: dict[str, Any] = {"file": "sql_package:queries/half.sql", "args": {"half": 0}}
    total: Any = {
        "file": "sql_package:queries/total.sql",
        "args": {"most": 3},
        "tables": {"halves": {"node": "half"}},
    }
    nodes = [
        FlowNode(
            "half",
            queue="spark",
            job=SQL_JOB,
            data={**half, "publish": {"location": str(tmp_path / "halves")}},
        ),
        FlowNode("total", queue="spark", job=SQL_JOB, data=total, after=["half"]),
    ]
    with FlowProducer(url) as flows:
        results: Any = flows.submit(FlowSpec("sql", nodes)).wait(timeout=timedelta(seconds=60)).results
    assert results["half"]["published"]["rows"] == 2
    assert results["total"]["rows"] == [[2]]
    assert Path(results["half"]["published"]["path"]).is_dir()
