"""What a ``spark.submit`` job may name, and how it is told that it may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate.spark.submit.application import Application
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

ALLOWED = {
    "GLIDEMQ_SPARK_APPLICATIONS": "/opt/jobs/*, s3a://jobs/*.jar, file:///opt/jobs/*",
    "GLIDEMQ_SPARK_STEP_CONF": "spark.jars",
}

WRONG_PROGRAMS: list[tuple[Any, str]] = [
    (None, "needs an object with file or application"),
    ({}, "needs either file or application"),
    ({"file": "a:b.py", "application": "/opt/jobs/x.py"}, "needs either file or application"),
    ({"file": 7}, "needs either file or application, a string"),
    ({"file": "submit_package:programs/daily.py", "arguments": []}, "has no field arguments"),
    ({"file": "daily.py"}, "must be written package:path/of/file.py"),
    ({"file": "submit_package:../secret.py"}, "must be written package:path"),
    ({"file": "submit_package:/etc/passwd"}, "must be written package:path"),
    (
        {"file": "submit_package:programs/none.py"},
        "the package submit_package has no file programs/none.py",
    ),
    ({"file": "os:path.py"}, "this worker may not import os"),
    ({"file": "submit_package.none:x.py"}, "submit_package.none cannot be imported: ModuleNotFoundError"),
    ({"application": "/etc/x.py"}, "this worker may not run /etc/x.py"),
    ({"application": "/opt/jobs/../../etc/x.py"}, "this worker may not run"),
    ({"application": "file:///opt/jobs/%2e%2e/x.py"}, "this worker may not run"),
    ({"application": "file:///opt/jobs/..%2fx.py"}, "this worker may not run"),
    ({"application": "file:///opt/jobs/%252E%252e/x.py"}, "this worker may not run"),
    ({"application": "file:///opt/jobs/a\\..\\x.py"}, "this worker may not run"),
    ({"application": "/opt/jobs/x.py#y.py"}, "this worker may not run"),
    ({"application": "/opt/jobs/x\0.py"}, "this worker may not run"),
    ({"application": "/opt/jobs/x.py", "py_files": ["file:///opt/jobs/%2e./x.zip"]}, "may not run"),
    ({"application": "/opt/jobs/x.py,/etc/x.py"}, "this worker may not run"),
    ({"application": "--help"}, "this worker may not run"),
    ({"application": "/opt/jobs/x.jar", "class": "a b"}, "class must be the name of a class"),
    ({"application": "/opt/jobs/x.jar", "class": "--conf"}, "class must be the name of a class"),
    ({"application": "/opt/jobs/x.py", "args": "--day"}, "args must be a list"),
    ({"application": "/opt/jobs/x.py", "args": ["a\0b"]}, "no NUL character"),
    ({"application": "/opt/jobs/x.py", "py_files": "x.zip"}, "py_files must be a list of strings"),
    ({"application": "/opt/jobs/x.py", "py_files": ["/etc/x.zip"]}, "this worker may not run /etc/x.zip"),
    ({"application": "/opt/jobs/x.py", "deploy_mode": "cluster"}, 'deploy_mode must be "client"'),
    (
        {"application": "/opt/jobs/x.py", "conf": {"spark.driver.extraJavaOptions": "-x"}},
        "may not contain",
    ),
    ({"application": "/opt/jobs/x.py", "conf": {"spark.sql.extensions": "x.Y"}}, "may not contain"),
    ({"application": "/opt/jobs/x.py", "conf": {"other": "x"}}, "may not contain other"),
    ({"application": "/opt/jobs/x.py", "conf": []}, "conf must be an object"),
    ({"application": "/opt/jobs/x.py", "inputs": {"node": "n", "to": [3]}}, "have no place"),
]


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("package")
    place = folder / "submit_package" / "programs"
    place.mkdir(parents=True)
    (folder / "submit_package" / "__init__.py").touch()
    (folder / "secret.py").touch()
    (place / "daily.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield place


def _application(data: Any, inputs: Any = None) -> Application:
    ctx = Context("spark", "1", "spark.submit", 1, data, inputs or {}, None, None)
    ctx.allow_import = ["submit_package"]
    with ExitStack() as stack:
        return Application.of(ctx, stack, ALLOWED)


def test_a_file_of_an_allowed_package_is_found(programs: Path) -> None:
    found = _application({"file": "submit_package:programs/daily.py"})
    assert (found.path, found.main_class, found.args) == (str(programs / "daily.py"), "", ())
    assert found.title == "application submit_package:programs/daily.py"


def test_arguments_are_texts_and_results_of_dependencies(programs: Path) -> None:
    data = {
        "file": "submit_package:programs/daily.py",
        "args": ["--day", "a b; $x", 7, 1.5, True, None, {"a": ["ü"]}, None],
        "inputs": {"node": "load", "path": ["rows"], "to": [7]},
        "py_files": ["submit_package:programs/daily.py", "/opt/jobs/more.zip"],
        "conf": {"spark.executor.memory": "8g", "spark.sql.shuffle.partitions": 4, "spark.jars": "a.jar"},
    }
    found = _application(data, {"load": {"rows": [1, 2]}})
    assert found.args == ("--day", "a b; $x", "7", "1.5", "true", "null", '{"a":["ü"]}', "[1,2]")
    assert found.py_files == (str(programs / "daily.py"), "/opt/jobs/more.zip")
    assert found.conf == {
        "spark.executor.memory": "8g", "spark.sql.shuffle.partitions": "4", "spark.jars": "a.jar",
    }  # fmt: skip


def test_a_jar_that_the_worker_allows_has_a_main_class() -> None:
    found = _application({"application": "s3a://jobs/daily.jar", "class": "com.example.Daily$"})
    assert (found.path, found.main_class) == ("s3a://jobs/daily.jar", "com.example.Daily$")


def test_a_uri_may_have_encoded_characters_that_lead_nowhere() -> None:
    assert _application({"application": "file:///opt/jobs/a%20b..py"}).path == "file:///opt/jobs/a%20b..py"


def test_what_it_may_not_name_is_told(subtests: pytest.Subtests) -> None:
    for data, expected in WRONG_PROGRAMS:
        with subtests.test(data=data), pytest.raises(InvalidCall, match=expected.replace("$", r"\$")):
            _application(data)
