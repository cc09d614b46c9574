"""Calls that a job describes: the function, its arguments, and results of dependencies in their places."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any

import pytest

from glidemq_orchestrate import Context, Skip, Unrecoverable
from glidemq_orchestrate.python.functions import run_function
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall, NamedCall

WORK = """
    import os
    from functools import lru_cache

    def same(**given):
        return given

    def add(left, right=0):
        return left + right

    def about(ctx, *, greeting="hello"):
        return f"{greeting} {ctx.node}"

    async def later(month):
        return month + 1

    def talks():
        import logging, threading
        log = logging.getLogger("mine")
        log.info("%d rows", 5)
        log.debug("not of interest")
        logging.getLogger("glidemq_orchestrate.worker").warning("of the worker")
        other = threading.Thread(target=log.warning, args=["of another thread"])
        other.start()
        other.join()
        log.warning("done")

    def talks_much():
        import logging
        for number in range(5_000):
            logging.getLogger("mine").warning("line %d", number)

    def not_json():
        return {1, 2}

    def skips():
        class AirflowSkipException(Exception): pass
        raise AirflowSkipException("nothing to do")

    def fails():
        class AirflowFailException(Exception): pass
        raise AirflowFailException("for good")

    def breaks():
        raise KeyError("boom")

    class Task:  # as Airflow's decorator makes one
        _airflow_is_task_decorator = True

        def __init__(self, function):
            self.function = self.__wrapped__ = function

        def __call__(self, *args, **kwargs):
            raise AssertionError("this belongs into a DAG")

    class Guard:
        def __init__(self, function):
            self.function = self.__wrapped__ = function

        def __call__(self, *args, **kwargs):
            return "guarded"

    @Task
    def task(month):
        return month * 2

    @Guard
    def guarded(month):
        raise AssertionError("the guard was passed by")

    smuggled = Task(os.getcwd)
    number = 7
"""

NO_PLACES: list[tuple[Any, str]] = [
    ({"node": "load"}, "each of inputs must be"),
    ([5], "each of inputs must be"),
    ([{"node": 5, "to": ["a"]}], "each of inputs must be"),
    ([{"node": "load", "to": []}], "each of inputs must be"),
    ([{"node": "load", "to": "a"}], "each of inputs must be"),
    ([{"node": "load", "path": "rows", "to": ["a"]}], "each of inputs must be"),
    ([{"node": "load", "path": ["cols"], "to": ["a"]}], r"result of node load has no \['cols'\]"),
    ([{"node": "load", "path": ["rows", 9], "to": ["a"]}], "result of node load has no"),
    ([{"node": "load", "path": [["x"]], "to": ["a"]}], "result of node load has no"),
    ([{"node": "load", "to": ["x", "y"]}], r"arguments have no place \['x'\]\['y'\]"),
    ([{"node": "load", "to": ["text", 0]}], "arguments have no place"),
    ([{"node": "load", "to": [{}]}], "arguments have no place"),
]

NO_CALLS: list[tuple[Any, str]] = [
    (None, "a python job needs an object"),
    ({}, "needs a callable"),
    ({"callable": 5}, "needs a callable"),
    ({"callable": "json.dumps"}, "package.module:function"),
    ({"callable": "json:dumps"}, "may not import json"),
    ({"callable": "WORK:number"}, "number is not a function"),
    (
        {"callable": "WORK:nothing"},
        r"module \S+ \(/.*\.py\) has no nothing\. Fix: if it was added .* restart the worker on \S+$",
    ),
    ({"callable": "WORK:takls"}, "has no takls; did you mean 'talks'\\? Fix: if it was added"),
    ({"callable": "WORK:os.system"}, "may not import os"),
    ({"callable": "WORK:add.__globals__"}, "may not import"),
    ({"callable": "WORK:add"}, "missing a required argument: 'left'"),
    ({"callable": "WORK:add", "arguments": {"up": 1}}, "missing.*'left'; there is no parameter 'up'"),
    (
        {"callable": "WORK:add", "arguments": {"lefd": 1}},
        "missing a required argument: 'left'; there is no parameter 'lefd'; did you mean 'left'\\?$",
    ),
    (
        {"callable": "WORK:add", "arguments": {"left": 1, "rigth": 1}},
        "an unexpected keyword argument 'rigth'; did you mean 'right'\\?$",
    ),
    ({"callable": "WORK:add", "arguments": [1]}, "arguments must be an object"),
    ({"callable": "WORK:add", "kwargs": {}}, "unknown field kwargs"),
    ({"callable": "WORK:not_json"}, "not JSON.*Convert it by sorted"),
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"work_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(WORK))
    (tmp_path / f"{name}_dag.py").write_text("from airflow_of_nobody.sdk import DAG\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@dataclass
class Lines(Reporter):
    """The lines that a job has logged."""

    lines: list[str] = field(default_factory=list)

    def log(self, line: str) -> None:
        self.lines.append(line)


def job(data: Any, allowed: str, **inputs: Any) -> Context:
    return Context("q", "j1", "python", 1, data, inputs, "flow", "node", allow_import=[allowed])


def run(work: str, path: str, arguments: Any = None, inputs: Any = None, **results: Any) -> Any:
    data = {"callable": f"{work}:{path}", "arguments": arguments}
    return run_function(job(data if inputs is None else {**data, "inputs": inputs}, work, **results))


def test_a_function_is_called_by_the_names_of_its_arguments(work: str) -> None:
    assert run(work, "add", {"left": 1, "right": 2}) == 3
    assert run(work, "add", {"left": 1}) == 1
    assert run(work, "same", {"a": [1], "ctx": 2}) == {"a": [1], "ctx": 2}
    assert run(work, "later", {"month": 1}) == 2


def test_a_parameter_ctx_gets_the_job(work: str) -> None:
    assert run(work, "about") == "hello node"
    assert run(work, "about", {"greeting": "good day"}) == "good day node"
    assert run(work, "about", {"ctx": {"node": "forged"}}) == "hello node"


def test_airflow_decorates_the_function_and_calls_other_objects(work: str) -> None:
    assert run(work, "task", {"month": 4}) == 8
    assert run(work, "guarded", {"month": 4}) == "guarded"
    with pytest.raises(InvalidCall, match="may not import posix"):
        run(work, "smuggled")


def test_exceptions_of_airflow_skip_and_fail_for_good_others_pass(work: str) -> None:
    with pytest.raises(Skip, match="nothing to do"):
        run(work, "skips")
    with pytest.raises(Unrecoverable, match="for good"):
        run(work, "fails")
    with pytest.raises(KeyError):
        run(work, "breaks")


def test_what_a_function_logs_is_in_the_log_of_its_job(work: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for function, expected in (("talks", ["INFO 5 rows", "WARNING done"]), ("talks_much", None)):
        made, reporter = job({"callable": f"{work}:{function}"}, work), Lines()
        made.reporter = reporter
        before = list(logging.getLogger().handlers)
        run_function(made)
        assert logging.getLogger().handlers == before
        if expected:
            assert reporter.lines == expected
    assert len(reporter.lines) == 1_001
    assert reporter.lines[999:] == [
        "WARNING line 999",
        "further lines are only in the log of the worker",
    ]
    assert "line 4999" in caplog.text, "the worker logs all of it"


def test_results_of_dependencies_are_put_in_their_places(work: str) -> None:
    inputs = [
        {"node": "load", "to": ["a"]},
        {"node": "load", "path": ["rows", 1], "to": ["b", "inner", 0]},
        {"node": "skipped", "path": ["rows"], "to": ["c"]},
    ]
    arguments = {"b": {"inner": [None, "kept"]}, "d": 1}
    loaded = {"rows": [5, 6]}
    assert run(work, "same", arguments, inputs, load=loaded) == {
        "a": loaded,
        "b": {"inner": [6, "kept"]},
        "c": None,
        "d": 1,
    }
    assert run(work, "add", {}, [{"node": "one", "to": ["left"]}], one=1) == 1


def test_the_results_of_a_list_of_nodes_are_put_in_order(work: str) -> None:
    results = {"part[10]": 10, "part[9]": 9, "part[0]": 0, "part": {"nodes": 3}, "part[x]": 1, "party[1]": 1}
    inputs = [{"node": "part[*]", "to": ["a"]}, {"node": "none[*]", "to": ["b"]}]
    assert run(work, "same", {}, inputs, **results) == {"a": [0, 9, 10], "b": []}
    assert run(work, "same", {}, inputs[:1], **{**results, "part[*]": "itself"}) == {"a": "itself"}


def test_a_place_that_is_not_there(work: str, subtests: pytest.Subtests) -> None:
    for inputs, why in NO_PLACES:
        with subtests.test(inputs=inputs):
            with pytest.raises(InvalidCall, match=why) as caught:
                run(work, "same", {"text": "abc"}, inputs, load={"rows": [1]})
            assert f"function {work}:same" in str(caught.value)


def test_a_payload_that_describes_no_call_fails_for_good(work: str, subtests: pytest.Subtests) -> None:
    for data, why in NO_CALLS:
        with subtests.test(data=data):
            if isinstance(data, dict) and isinstance(data.get("callable"), str):
                data["callable"] = data["callable"].replace("WORK", work)
            with pytest.raises(InvalidCall, match=why) as caught:
                run_function(job(data, work))
            assert isinstance(caught.value, Unrecoverable)


def test_a_dag_file_on_a_worker_without_airflow_is_explained(work: str) -> None:
    data = {"callable": f"{work}_dag:load"}
    with pytest.raises(InvalidCall, match="install airflow-provider-glidemq for the worker too, or move"):
        run_function(job(data, f"{work}_dag"))


def test_the_package_to_allow_is_named(work: str) -> None:
    for name, package in (
        ("etl.steps.load:rows", "etl.steps"),
        ("etl:rows", "etl"),
        ("os:remove", "PACKAGE"),
    ):
        with pytest.raises(InvalidCall, match=f"Fix: start the worker with --allow-import {package}, or"):
            run_function(job({"callable": name}, work))


def test_a_module_that_is_not_installed_is_told_with_a_fix(work: str, tmp_path: Path) -> None:
    (tmp_path / f"{work}_needs.py").write_text("import of_nobody.part\n")
    for module, fix in (
        ("nowhere_to_be", "install it for the worker, or start the worker in its directory"),
        (f"{work}_needs", "install of_nobody for the worker"),
    ):
        with pytest.raises(InvalidCall, match=rf"importing {module} failed: .*\. Fix: {fix}$"):
            run_function(job({"callable": f"{module}:load"}, module))


class Later:
    """As a coroutine that was not awaited."""

    def __await__(self) -> Iterator[None]:
        yield None


class Single:
    """As numpy has a single bool."""

    shape = ()

    def item(self) -> bool:
        return True


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


class NAType:
    """As pandas marks a missing value."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


NOT_JSON: list[tuple[Any, str]] = [
    (Decimal("1.5"), r"it is of type decimal\.Decimal\. Convert it by int\(\.\.\.\), float"),
    (
        {"rows": [{"day": datetime(2026, 1, 1)}]},  # noqa: DTZ001  as it comes from a row
        r"the value at \['rows'\]\[0\]\['day'\] is of type datetime\.datetime\. Convert it by str",
    ),
    ((1, {2}), r"the value at \[1\] is of type set\. Convert it by sorted"),
    ({"x": {7: 1}}, r"a key of \['x'\] is of type int\. Convert it by str\(\.\.\.\)$"),
    ({(1, 2): 3}, r"a key is of type tuple\. Convert it by str\(\.\.\.\)$"),
    (
        {"file": PurePath("a")},
        r"the value at \['file'\] is of type pathlib\..*\. Convert it by str\(\.\.\.\)$",
    ),
    ([Later()], r"the value at \[0\] is of type .*\. Await it$"),
    ({"a": "\ud800"}, r"a text has half of a surrogate pair\. Fix: text\.encode"),
    ([Single()], r"the value at \[0\] is of type .*\.Single\. Convert it by \.item\(\)"),
    ({"a": object()}, r"the value at \['a'\] is of type object\. Write it elsewhere$"),
    ({"a": [float("nan")]}, r"the value at \['a'\]\[0\] is NaN\. Fix: replace it with None$"),
    ([Decimal("NaN")], r"the value at \[0\] is of type decimal\.Decimal\. Replace it with None$"),
    ([NAType()], r"the value at \[0\] is of type .*\.NAType\. Replace it with None$"),
    (CIRCULAR, r"it contains itself\. Fix: leave that out$"),
]


def test_what_a_result_has_that_is_not_json_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    for result, told in NOT_JSON:
        with subtests.test(result=result):
            call = NamedCall("step a:b", lambda: None, {})
            with pytest.raises(InvalidCall, match=f"^result of step a:b is not JSON: .*{told}"):
                call.checked(result, "Write it elsewhere")
