"""Editors and type checkers see every method of both twins, with its parameters and its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import pytest

from tests.stubs import MODULES, PACKAGE, Stub, path_of

CLASSES = [
    (name, node)
    for name in MODULES
    for node in ast.parse(path_of(name).read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
]


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_is_up_to_date(name: str) -> None:
    assert path_of(name).read_text(encoding="utf-8") == Stub(name).text(), "make generated"


@pytest.mark.parametrize(("module", "stub"), CLASSES, ids=lambda value: getattr(value, "name", value))
def test_a_stub_has_the_methods_of_its_class(module: str, stub: ast.ClassDef) -> None:
    kind = getattr(importlib.import_module(f"{PACKAGE}.{module}"), stub.name)
    declared = {one.name: one for one in stub.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    members = {name for name, one in vars(kind).items() if callable(one) or isinstance(one, property)}
    assert set(declared) == members
    for name, found in declared.items():
        made: Any = vars(kind)[name]
        if isinstance(made, property) or name.startswith("_"):
            continue
        assert ast.get_docstring(found) == inspect.getdoc(made), name
        parameters = [*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs]
        names = [one.arg for one in parameters] + ([found.args.kwarg.arg] if found.args.kwarg else [])
        assert names == list(inspect.signature(made).parameters), name
        is_awaited = inspect.iscoroutinefunction(inspect.unwrap(made, stop=inspect.iscoroutinefunction))
        assert isinstance(found, ast.AsyncFunctionDef) == is_awaited, name


def test_twins_have_the_same_methods() -> None:
    methods = {
        stub.name: {one.name for one in stub.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        for _, stub in CLASSES
    }
    twins = [name for name in methods if f"Async{name}" in methods]
    assert sorted(twins) == [
        "Broadcast",
        "ChasquiQueue",
        "EventReader",
        "Flow",
        "FlowArray",
        "FlowProducer",
        "Queue",
        "Schedules",
    ]
    for name in twins:
        assert {one for one in methods[name] if not one.startswith("_")} == {
            one for one in methods[f"Async{name}"] if not one.startswith("_")
        }
