"""Which functions a job can name, and by which name a worker imports them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow_provider_glidemq.functions import PYTHON_JOB, SPARK_JOB, NamedFunction, bundle_folders

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.python import functions
from glidemq_orchestrate.spark.steps import run

HERE = Path(__file__)


def clean(month: int, *, keep: bool = False, ctx: Any = None) -> Any:
    return month, keep, ctx


def step(spark: Any, ctx: Any, month: int, **more: int) -> Any:
    return spark, ctx, month, more


def rows(*numbers: int) -> Any:
    return numbers


def only(month: int, /) -> Any:
    return month


def yields() -> Any:
    yield 1


def wants(month: int, ds: str, ti: Any = None) -> Any:
    return month, ds, ti


def wants_all(**context: Any) -> Any:
    return context


def asks() -> Any:
    return get_current_context()  # type: ignore[name-defined]  # noqa: F821


def careless() -> Any:
    return None


@functools.wraps(careless)
def _taken() -> Any:
    return 1


class Group:
    def method(self) -> Any:
        return self


def test_the_names_of_the_jobs_are_those_of_the_core() -> None:
    assert (PYTHON_JOB, SPARK_JOB) == (functions.JOB_NAME, run.JOB_NAME)
    assert NamedFunction.of(clean).job == PYTHON_JOB
    assert NamedFunction.of(step, is_spark=True).job == SPARK_JOB


def test_a_function_is_named_by_its_module_and_its_arguments_by_name() -> None:
    named = NamedFunction.of(clean)
    assert named.path == f"{__name__}:clean"
    assert named.data([1], {"keep": True}) == {
        "callable": named.path,
        "arguments": {"month": 1, "keep": True},
    }
    assert named.data([None], inputs=[{"node": "load", "to": ["month"]}])["inputs"] == [
        {"node": "load", "to": ["month"]}
    ]
    assert NamedFunction.of(step, is_spark=True).arguments([5], {"a": 1}) == {"month": 5, "a": 1}
    named.check_found()


def test_what_the_worker_supplies_cannot_be_passed() -> None:
    for named, kwargs in (
        (NamedFunction.of(clean), {"month": 1, "ctx": 5}),
        (NamedFunction.of(step, is_spark=True), {"month": 1, "spark": 5}),
    ):
        if named.is_spark:
            assert named.arguments((), kwargs) == kwargs, "one of **more"
            continue
        with pytest.raises(TypeError, match="unexpected keyword argument 'ctx'"):
            named.arguments((), kwargs)
    with pytest.raises(TypeError, match="missing a required argument: 'month'"):
        NamedFunction.of(clean).arguments()


def _inner() -> Any:
    def nested() -> None:
        pass

    return nested


NOT_CALLABLE: list[tuple[Any, str]] = [
    (lambda: None, "is a lambda, .*move it to the top level"),
    (_inner(), "is defined inside another function, .*move it to the top level"),
    (Group.method, "is a method"),
    (Group().method, "is not a plain function"),
    (functools.partial(clean, 1), "is not a plain function"),
    (print, "is not a plain function"),
    (Group, "is not a plain function"),
    (yields, "yields; let it return"),
    (rows, r"takes positional arguments \(\*numbers\), .*take a list instead"),
    (only, r"takes positional arguments \(month\)"),
    (wants_all, r"needs Airflow's context \(\*\*context\), which a glide-mq worker does not have: pass"),
    (asks, r"needs Airflow's context \(get_current_context\)"),
]


def test_a_function_that_no_worker_could_call_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for function, why in NOT_CALLABLE:
        with subtests.test(function=function), pytest.raises(ConfigurationError, match=why):
            NamedFunction.of(function)


def test_a_spark_step_takes_the_session_and_the_context_first(subtests: pytest.Subtests) -> None:
    for function in (rows, careless):
        with (
            subtests.test(function=function),
            pytest.raises(ConfigurationError, match=r"must take \(spark, ctx, ...\)"),
        ):
            NamedFunction.of(function, is_spark=True)


def test_values_of_the_context_must_be_passed() -> None:
    named = NamedFunction.of(wants)
    with pytest.raises(ConfigurationError, match=r"needs Airflow's context \(ds, ti\).*pass what it needs"):
        named.check_context([1])
    named.check_context([1], {"ds": "x", "ti": "y"})


def test_a_name_that_stands_for_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="has something else under this name"):
        NamedFunction.of(_taken).check_found()
    NamedFunction.of(careless).check_found()


DAG_FILE = """
    def load(day):
        return day
"""


@pytest.fixture
def dag_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a module as Airflow does of a DAG file: under a name that nobody can import."""

    def make(place: str) -> ModuleType:
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(DAG_FILE))
        made = ModuleType(f"unusual_prefix_0123456789012345678901234567890123456789_{file.stem}")
        made.__file__ = str(file)
        exec(compile(file.read_text(), str(file), "exec"), vars(made))
        monkeypatch.setitem(sys.modules, made.__name__, made)
        return made

    return make


def test_a_function_of_a_dag_file_is_named_by_the_place_of_the_file(
    dag_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert NamedFunction.of(dag_module("nightly.py").load).path == "nightly:load"
    assert NamedFunction.of(dag_module("team/etl/nightly.py").load).path == "team.etl.nightly:load"
    assert NamedFunction.of(dag_module("team/__init__.py").load).path == "team:load"
    named = NamedFunction.of(dag_module("team/etl/nightly.py").load)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "team")])
    assert named.path == "etl.nightly:load", "the nearest folder counts"
    named.check_found()


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the only DAG bundle that Airflow is configured with."""
    folder = tmp_path / "my-dags"
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    configured = [{"name": "dags", "classpath": local, "kwargs": {"path": str(folder)}}]
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(configured))
    bundle_folders.cache_clear()
    yield folder
    bundle_folders.cache_clear()


def test_a_function_in_a_bundle_has_the_same_name_in_each_process_of_airflow(
    dag_module: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    named = NamedFunction.of(dag_module("my-dags/team/nightly.py").load)
    for process, added in (
        ("airflow tasks clear", []),
        ("dag-processor", [bundle]),
        ("a command, begun above the bundle", [bundle.parent]),
        ("the DAG file as a program", [bundle / "team"]),
    ):
        monkeypatch.setattr(sys, "path", [*map(str, added), *sys.path])
        with subtests.test(process=process):
            assert named.path == "team.nightly:load"


def test_a_dag_file_that_cannot_be_imported_is_refused(
    dag_module: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = dag_module("nightly.py").load
    bundle.mkdir()
    with pytest.raises(
        ConfigurationError,
        match=r"nightly\.py is in no DAG bundle and in no folder of sys\.path, .*: move the function to",
    ):
        _ = NamedFunction.of(function).path
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ConfigurationError, match=r"my-dag\.py has no name that can be imported \(my-dag\)"):
        _ = NamedFunction.of(dag_module("my-dag.py").load).path


@pytest.mark.long
@pytest.mark.parametrize("how", [["nightly.py"], ["-m", "nightly"]])
def test_a_program_is_named_as_its_file_is(tmp_path: Path, how: list[str]) -> None:
    imports = "from airflow_provider_glidemq.functions import NamedFunction"
    text = f"{imports}\n{textwrap.dedent(DAG_FILE)}\nprint(NamedFunction.of(load).path)\n"
    (tmp_path / "nightly.py").write_text(text)
    done = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "nightly:load", "Airflow logs to stdout too"
