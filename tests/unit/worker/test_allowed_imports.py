from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from glidemq_orchestrate import Worker
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.handlers.named_call import ImportNotAllowed, follow, is_allowed
from glidemq_orchestrate.worker.services.apps import load_handlers, package_of

URL = "valkey://127.0.0.1:1"

ALLOWED: list[tuple[str, list[str], bool]] = [
    ("mypackage", ["mypackage"], True),
    ("mypackage.sub.steps", ["mypackage"], True),
    ("mypackage2", ["mypackage"], False),
    ("mypackage", ["mypackage.sub"], False),
    ("mypackage.sub", ["other", "mypackage.sub"], True),
    ("mypackage.submarine", ["mypackage.sub"], False),
    ("", ["mypackage"], False),
    ("mypackage", [], False),
    ("os", ["mypackage"], False),
    (".mypackage", ["mypackage"], False),
    ("mypackage.", ["mypackage"], False),
    ("mypackage..os", ["mypackage"], False),
    ("mypackage./tmp/x", ["mypackage"], False),
    ("mypackage.sub/../../x", ["mypackage"], False),
    ("mypackage.sub:os", ["mypackage"], False),
    ("mypackage.sub\n", ["mypackage"], False),
    ("mypackage\0.sub", ["mypackage"], False),
    (" mypackage", ["mypackage"], False),
    ("MyPackage", ["mypackage"], False),
    ("myp\u0430ckage", ["mypackage"], False),  # a Cyrillic letter
    ("\uff4dypackage", ["mypackage"], False),  # a wide one, which Python's own source reads as m
    ("mypackage\uff0esub", ["mypackage"], False),
    ("mypackage.__main__", ["mypackage"], False),
    ("mypackage.__main__.x", ["mypackage"], False),
    ("__main__", ["__main__"], True),
]

INVALID_LISTS: list[Any] = ["mypackage", [""], ["my-package"], ["a..b"], ["a:b"], ["*"], [3], ["a."]]

DEFINED: list[str] = ["step", "Report", "Report.build", "own_partial", "instance"]

WAYS_OUT: list[tuple[str, str]] = [
    ("os.system", "os"),
    ("hidden_os", "os"),
    ("os.path.join", "os"),
    ("system", "posix"),
    ("Popen", "subprocess"),
    ("run", "subprocess"),
    ("run_partly", "subprocess"),
    ("builtin_eval", "builtins"),
    ("OrderedDict.fromkeys", "collections"),
    ("VALUES.append", "builtins"),
    ("step.__globals__", "step.__globals__"),
    ("step.__globals__.update", "step.__globals__.update"),
    ("step.__class__", "step.__class__"),
    ("Report.__subclasses__", "Report.__subclasses__"),
    ("Report.__init__.__globals__", "Report.__init__"),
    ("__builtins__", "__builtins__"),
    ("__loader__.exec_module", "__loader__"),
    ("__spec__", "__spec__"),
]

LITERAL_PATHS: list[str] = ["", ".", "step.", ".step", "\uff53tep", "st\u0435p", "no"]


def test_packages_are_compared_by_whole_parts(subtests: pytest.Subtests) -> None:
    for module, allowed, expected in ALLOWED:
        with subtests.test(module=module):
            assert is_allowed(module, allowed) is expected


PACKAGE = """
import os
import os as hidden_os
from collections import OrderedDict
from functools import partial, wraps
from os import system
from subprocess import Popen, run

run_partly = partial(run, ["true"])
builtin_eval = eval
VALUES = []


def _wrapped(function):
    @wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


@_wrapped
def step(spark, ctx):
    return "ran"


own_partial = partial(step)


class Report:
    def build(self, ctx):
        return "built"


class Callable_:
    def __call__(self, spark, ctx):
        return "called"


instance = Callable_()
"""


@pytest.fixture(scope="module")
def package() -> Iterator[ModuleType]:
    made = ModuleType("mine.steps")
    exec(PACKAGE, made.__dict__)
    yield made
    made.VALUES.clear()


def test_what_a_package_defines_is_found(package: ModuleType, subtests: pytest.Subtests) -> None:
    for path in DEFINED:
        with subtests.test(path=path):
            assert callable(follow(package, path, ["mine"]))


def test_a_path_does_not_lead_out_of_the_package(package: ModuleType, subtests: pytest.Subtests) -> None:
    for path, home in WAYS_OUT:
        with (
            subtests.test(path=path),
            pytest.raises(ImportNotAllowed, match=f"may not import .*{re.escape(home)}"),
        ):
            follow(package, path, ["mine"])


def test_a_path_is_taken_literally(package: ModuleType, subtests: pytest.Subtests) -> None:
    for path in LITERAL_PATHS:
        with subtests.test(path=path), pytest.raises(AttributeError):
            follow(package, path, ["mine"])


def test_an_invalid_list_of_packages_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in INVALID_LISTS:
        with subtests.test(wrong=wrong), pytest.raises(ConfigurationError, match="allow_import"):
            Worker(URL, queues=["etl"], allow_import=wrong)


@pytest.mark.parametrize(
    ("app", "package"),
    [
        ("glidemq_orchestrate.spark", "glidemq_orchestrate.spark"),
        ("glidemq_orchestrate.spark:handlers", "glidemq_orchestrate.spark"),
        ("glidemq_orchestrate.spark.handler", "glidemq_orchestrate.spark"),
        ("a_module_alone", "a_module_alone"),
    ],
)
def test_the_default_is_the_package_of_the_app(
    app: str, package: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_alone.py").write_text("from glidemq_orchestrate import Handlers\nh = Handlers()\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_handlers(app)
    assert package_of(app) == package
