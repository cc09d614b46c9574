"""Where the code of handlers is, as workers register it."""

from __future__ import annotations

import functools
import inspect
import json
import math
import operator
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import Handlers
from glidemq_orchestrate.attempts.handler_code import (
    MAX_HANDLERS,
    MAX_LENGTH,
    HandlerCode,
    read_code,
    registered_code,
)
from glidemq_orchestrate.worker.handlers.code import Codes, code_of

FILE = "tests/unit/worker/test_code.py"


def clean(_ctx: Any) -> None: ...


def clean_many(contexts: list[Any]) -> list[Any]:
    return contexts


@functools.wraps(clean)
def wrapped(ctx: Any) -> None:
    clean(ctx)


def with_day(_day: str, _ctx: Any) -> None: ...


class Step:
    def __call__(self, _ctx: Any) -> None: ...

    def run(self, _ctx: Any) -> None: ...


class OfData:
    def __init__(self, _ctx: Any) -> None: ...


class Endless:
    """Each of its attributes is another one of its kind."""

    def __call__(self, _ctx: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return Endless()


class Furious(Endless):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


nameless = lambda _ctx: None  # noqa: E731


def line_of(function: Any) -> int:
    return inspect.getsourcelines(function)[1]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package, from which a worker runs."""
    (tmp_path / "etl_steps").mkdir()
    (tmp_path / "etl_steps/daily.py").write_text("\n\ndef load(ctx):\n    return 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(path: Path) -> Any:
    """The function of the project, compiled from a file of this name."""
    code = compile(path.read_text(), str(path), "exec")
    made: dict[str, Any] = {"__name__": "etl_steps.daily"}
    exec(code, made)
    return made["load"]


@pytest.mark.parametrize(
    ("function", "path", "first"),
    [
        (clean, "clean", clean),
        (wrapped, "clean", clean),
        (functools.lru_cache(wrapped), "clean", clean),
        (functools.partial(with_day, "monday"), "with_day", with_day),
        (functools.partial(functools.partial(Step()), 1), "Step", Step.__call__),
        (Step(), "Step", Step.__call__),
        (Step().run, "Step.run", Step.run),
        (OfData, "OfData", OfData.__init__),
        (nameless, "<lambda>", nameless),
    ],
)
def test_the_code_is_that_of_the_users_function(function: Any, path: str, first: Any) -> None:
    found = code_of(function)
    assert found is not None
    assert found.path == f"{__name__}:{path}"
    assert found.file == f"{FILE}:{line_of(first)}"
    assert len(found.digest) == 8
    assert str(found) == f"{found.path} ({found.file})"


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (math.sqrt, "math:sqrt"),
        (operator.itemgetter(1), "operator:itemgetter"),
        ("".join, "str.join"),
        (str.upper, "str.upper"),
    ],
)
def test_a_builtin_has_a_name_and_no_file(function: Any, path: str) -> None:
    assert code_of(function) == HandlerCode(path)
    assert str(HandlerCode(path)) == path


@pytest.mark.parametrize("kind", [Endless, Furious])
def test_objects_whose_attributes_are_odd_have_no_code(kind: type[Any]) -> None:
    assert code_of(kind()) is None


def test_a_file_is_relative_to_the_nearest_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "etl_steps/daily.py"
    found = code_of(load(file))
    assert found == HandlerCode("etl_steps.daily:load", "etl_steps/daily.py:3", found.digest if found else "")
    monkeypatch.chdir("/")
    assert (found := code_of(load(file))) is not None
    assert found.file == "daily.py:3"  # the root is no place to count from
    monkeypatch.syspath_prepend(str(project))
    assert (found := code_of(load(file))) is not None
    assert found.file == "etl_steps/daily.py:3"
    monkeypatch.syspath_prepend(str(project / "etl_steps"))
    assert (found := code_of(load(file))) is not None
    assert found.file == "daily.py:3"


def test_a_file_that_is_gone_keeps_its_place_and_has_no_digest(project: Path) -> None:
    function = load(project / "etl_steps/daily.py")
    (project / "etl_steps/daily.py").unlink()
    assert code_of(function) == HandlerCode("etl_steps.daily:load", "etl_steps/daily.py:3")


def test_a_working_directory_that_is_gone_leaves_the_name_of_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = load(project / "etl_steps/daily.py")
    (project / "gone").mkdir()
    monkeypatch.chdir(project / "gone")
    (project / "gone").rmdir()
    assert (found := code_of(function)) is not None
    assert found.file == "daily.py:3"


def test_code_that_is_in_no_file_has_none() -> None:
    assert code_of(eval("lambda ctx: 1")) == HandlerCode(f"{__name__}:<lambda>")


def test_each_handler_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, looked = Handlers(), list[Any]()
    handlers.handler("a")(clean)
    codes = Codes(handlers)
    found = codes.find()
    monkeypatch.setattr("glidemq_orchestrate.worker.handlers.code.code_of", looked.append)
    assert codes.find() == found
    handlers.handler("b")(with_day_of_monday := functools.partial(with_day, "monday"))
    assert codes.find() == found
    assert looked == [with_day_of_monday]


def test_batch_handlers_and_included_ones_have_code() -> None:
    some, handlers = Handlers(), Handlers()
    some.batch_handler("many", size=3)(clean_many)
    handlers.handler("one", process=True)(clean)
    handlers.include(some)
    paths = {name: code.path for name, code in Codes(handlers).find().items()}
    assert paths == {"one": f"{__name__}:clean", "many": f"{__name__}:clean_many"}


def test_a_registration_has_the_code_of_a_thousand_handlers() -> None:
    handlers = Handlers()
    for at in range(2 * MAX_HANDLERS):
        handlers.handler(f"clean-{at}")(clean)
    fields = registered_code(Codes(handlers).find())
    assert (len(fields["code"]), len(fields["files"])) == (MAX_HANDLERS, MAX_HANDLERS)
    assert len(json.dumps(fields)) < MAX_HANDLERS * 2 * MAX_LENGTH


def test_what_is_too_long_is_not_registered() -> None:
    codes = {"a": HandlerCode("m:" + "f" * MAX_LENGTH, "a.py:1"), "b": HandlerCode("m:f", "x" * 201, "0" * 8)}
    assert read_code(registered_code(codes)) == {"b": HandlerCode("m:f", "", "0" * 8)}


@pytest.mark.parametrize(
    "code",
    [
        HandlerCode("m:f", "a.py:1", "5f2c01aa"),
        HandlerCode("m:f", "", ""),
        HandlerCode("m:<locals> f", "a b.py:1", ""),
        HandlerCode("m:<locals> f", "a b.py:1", "5f2c01aa"),
    ],
)
def test_what_is_registered_is_read(code: HandlerCode) -> None:
    assert read_code(json.loads(json.dumps(registered_code({"clean": code})))) == {"clean": code}


@pytest.mark.parametrize(
    "odd", [None, 7, "x", [], ["clean"], {}, {"clean": None}, {"clean": {}}, {"clean": ""}]
)
def test_garbage_is_left_out(odd: Any) -> None:
    assert read_code({"code": odd, "files": odd}) == {}
    assert read_code({"code": {"clean": "m:f"}, "files": odd}) == {"clean": HandlerCode("m:f")}
    assert read_code({"code": {"a": "m:\ud800", "b": "x" * 201}}) == {"a": HandlerCode("m:\ufffd")}
    assert len(read_code({"code": {str(at): "m:f" for at in range(MAX_HANDLERS + 1)}})) == MAX_HANDLERS
