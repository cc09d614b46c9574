"""Write the stubs of the clients, in which editors and type checkers see each method of both twins.

``python -m tests.stubs`` writes them, with ``--check`` it fails if one is stale. The methods are made of
operations when a module is imported; a stub has them in full, with the docstrings of the operations.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MODULES: Final = (
    *(f"clients.{name}" for name in ("broadcast", "events", "flows", "queue", "schedules")),
    "chasquimq.queue",
)
PACKAGE: Final = "glidemq_orchestrate"
HEADER: Final = "# Made by `make generated` from the operations. Do not edit.\n"
_STREAMS: Final = {"streamed": "Iterator", "streamed_async": "AsyncIterator"}


class Stub:
    """The stub of one module."""

    def __init__(self, name: str) -> None:
        self._module = importlib.import_module(f"{PACKAGE}.{name}")
        self._homes: dict[str, str] = {}

    def text(self) -> str:
        """The stub, formatted."""
        body = [made for node in _tree(self._module).body for made in self._of_statement(node)]
        tree = ast.Module(body, [])
        imports = sorted(self._imports(tree))
        text = HEADER + "\n".join(imports) + "\n\n" + ast.unparse(ast.fix_missing_locations(tree))
        return _formatted(text)

    def _of_statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(node, ast.ClassDef):
            yield self._of_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield _bodiless(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = type(getattr(self._module, node.target.id)).__name__
            yield ast.parse(f"{node.target.id}: Final[{kind}]").body[0]

    def _of_class(self, node: ast.ClassDef) -> ast.ClassDef:
        made: list[ast.stmt] = [docstring] if (docstring := _docstring(node)) else []
        operations = {
            ast.unparse(one.value.args[0].value)
            for one in node.body
            if isinstance(one, ast.Assign)
            and isinstance(one.value, ast.Call)
            and isinstance(one.value.args[0], ast.Attribute)
        }
        attributes = dict(_attributes(node))
        if operations:
            attributes.setdefault("_operations", min(operations))
            if not node.bases:  # it makes its calls with those of another client
                attributes["_run"] = "Any"
        made += ast.parse("\n".join(f"{name}: {kind}" for name, kind in attributes.items())).body
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                made.append(_bodiless(one))
            elif isinstance(one, ast.Assign):
                made.append(self._method(one))
        return ast.ClassDef(node.name, node.bases, [], made or ast.parse("...").body, [])

    def _method(self, node: ast.Assign) -> ast.stmt:
        """The method that a twin makes of an operation."""
        name, call = ast.unparse(node.targets[0]), node.value
        assert isinstance(call, ast.Call)
        twin, made_of = ast.unparse(call.func), ast.unparse(call.args[0])
        kind, _, operation = made_of.partition(".")
        function = inspect.unwrap(getattr(getattr(self._module, kind), operation))
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(found, ast.FunctionDef)
        self._know(importlib.import_module(function.__module__))
        assert found.returns is not None
        returned = ast.unparse(found.returns)
        if twin in _STREAMS:
            stream = vars(importlib.import_module(function.__module__))[returned]
            self._know(importlib.import_module(stream.__module__))
            read: str = inspect.get_annotations(stream.step)["return"]  # Op[Sequence[ITEM]] | None
            returned = f"{_STREAMS[twin]}[{read.partition('Sequence[')[2].partition(']] ')[0]}]"
        elif twin.endswith("_into"):
            returned = ast.unparse(call.args[1])
        else:
            returned = returned.partition("[")[2][:-1]  # of Op or Once
        bare = _bodiless(found)
        make = ast.AsyncFunctionDef if twin.startswith("awaited") else ast.FunctionDef
        return make(name, bare.args, bare.body, [], ast.parse(returned, mode="eval").body)

    def _know(self, module: ModuleType) -> None:
        """Where the names come from that the source of a module uses."""
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
                for alias in node.names:
                    given = f" as {alias.asname}" if alias.asname else ""
                    name = alias.asname or alias.name
                    self._homes.setdefault(name, f"from {node.module} import {alias.name}{given}")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._homes.setdefault(alias.asname or alias.name, ast.unparse(ast.Import([alias])))
        if module is not self._module:
            for name in vars(module):
                self._homes.setdefault(name, f"from {module.__name__} import {name}")

    def _imports(self, tree: ast.Module) -> Iterable[str]:
        self._homes = {"Iterator": "from collections.abc import Iterator"} | self._homes
        self._homes["Any"] = "from typing import Any"
        self._homes["AsyncIterator"] = "from collections.abc import AsyncIterator"
        functions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        own |= {ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
        self._know(self._module)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(self._module.__all__)
        return {self._homes[name] for name in used - own - set(dir(builtins)) - {"__all__"}}


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))


def _docstring(node: Any) -> ast.stmt | None:
    first: ast.stmt = node.body[0]
    return first if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The attributes whose class their assignment names."""
    for one in ast.walk(node):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute):
            made = one.value.func if isinstance(one.value, ast.Call) else None
            if isinstance(made, ast.Name) and made.id[0].isupper():
                yield one.targets[0].attr, made.id


def _bodiless(node: Any) -> Any:
    body = [docstring] if (docstring := _docstring(node)) else ast.parse("...").body
    # In a stub, a generator that is async is a plain function that returns an iterator.
    is_generator = any(isinstance(one, ast.Yield) for one in ast.walk(node))
    kind = ast.FunctionDef if is_generator else type(node)
    return kind(node.name, node.args, body, node.decorator_list, node.returns)


def _formatted(text: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for options in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [ruff, *options, "--stdin-filename", f"{PACKAGE}/clients/stub.pyi", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def path_of(name: str) -> Path:
    """The file of a stub."""
    return Path(str(importlib.import_module(f"{PACKAGE}.{name}").__file__)).with_suffix(".pyi")


def main() -> None:
    """Write the stubs, or check them."""
    is_check = "--check" in sys.argv
    for name in MODULES:
        text, path = Stub(name).text(), path_of(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is stale: make generated")


if __name__ == "__main__":
    main()
