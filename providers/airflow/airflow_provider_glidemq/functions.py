"""Functions that run on a glide-mq worker: how a job names a function, and which it cannot name.

A job holds ``module:function`` and the arguments by name, as JSON. Nothing is pickled, and no source text is
sent. The worker imports the module from its own disk, if ``--allow-import`` names a package that contains it:
``glidemq worker --app glidemq_orchestrate.python --allow-import etl --queue etl`` serves ``python`` jobs,
``--app glidemq_orchestrate.spark`` serves Spark steps. So a function may be defined in any module that both
can import. A DAG file is one if the DAG folder is on the worker's path and Airflow is installed there.
Airflow loads DAG files under module names that no other process can import; the name for the worker follows
from the location of the file in its DAG bundle. Not each process of Airflow has that folder in ``sys.path``:
``airflow tasks clear`` of 3.1 has not. Functions without such a name (lambdas, nested functions, methods),
arguments without names, generators, and functions that need Airflow's context are refused. The worker
supplies ``ctx``, the job's ``Context``; for Spark ``spark, ctx``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from glidemq_orchestrate.errors import ConfigurationError

PYTHON_JOB: Final = "python"  # glidemq_orchestrate.python.functions.JOB_NAME
SPARK_JOB: Final = "spark.python"  # glidemq_orchestrate.spark.steps.run.JOB_NAME
_CONTEXT: Final = "ctx"
_DAG_MODULE: Final = "unusual_prefix_"  # Airflow's prefix of the module name of a DAG file
_ASKING: Final = frozenset({"get_current_context", "get_parsing_context"})
_TOP_LEVEL: Final = "move it to the top level of its module"
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function that a job can name; with ``is_spark``, called as ``function(spark, ctx, **arguments)``."""

    function: Callable[..., Any]
    is_spark: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], *, is_spark: bool = False) -> NamedFunction:
        """Refuse a function that no worker could find or call. May be called while the DAG is parsed.

        Raises:
            ConfigurationError: The function is refused; the message has the reason, and an alternative.
        """
        title = _title(function)
        if not inspect.isfunction(function):
            raise ConfigurationError(f"{title} is not a plain function, so a worker cannot import it by name")
        if reason := _nameless(function):
            raise ConfigurationError(
                f"{title} {reason}, so a glide-mq worker cannot import it: {_TOP_LEVEL}, and give it a name"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{title} yields; let it return what it has made, such as a list")
        named = cls(function, is_spark)
        named._check_signature()
        return named

    @property
    def job(self) -> str:
        """The name of the job."""
        return SPARK_JOB if self.is_spark else PYTHON_JOB

    @property
    def path(self) -> str:
        """``module:function``, under which a worker imports it.

        Raises:
            ConfigurationError: Its file is in no DAG bundle and in no folder of ``sys.path``, or has no name
                that can be imported.
        """
        return f"{_module_of(self.function)}:{self.function.__qualname__}"

    @property
    def signature(self) -> inspect.Signature:
        """The parameters that a caller gives: without those that the worker supplies."""
        whole = inspect.signature(self.function)
        given = list(whole.parameters.values())[2 if self.is_spark else 0 :]
        return whole.replace(parameters=[one for one in given if self.is_spark or one.name != _CONTEXT])

    def arguments(
        self, args: Collection[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The arguments of a call, by name.

        Raises:
            TypeError: The function does not take them, or needs more.
        """
        bound = self.signature.bind(*args, **(kwargs or {}))
        named = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def data(
        self,
        args: Collection[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        inputs: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """The data of a job that calls the function.

        Args:
            args: Arguments by position.
            kwargs: Arguments by name.
            inputs: Results of dependencies to insert into the arguments, each as ``{"node": name, "path":
                [...], "to": [argument, ...]}``; see ``glidemq_orchestrate.worker.handlers.named_call``.
                ``args`` and ``kwargs`` must hold None in these places.

        Raises:
            TypeError: The function does not take the arguments, or needs more.
            ConfigurationError: A job cannot name the function.
        """
        data: dict[str, Any] = {"callable": self.path, "arguments": self.arguments(args, kwargs)}
        return {**data, "inputs": [dict(one) for one in inputs]} if inputs else data

    def stand_in(self) -> Callable[..., Any]:
        """A function with the signature that callers see, for Airflow's check of a call; never called."""

        def called(*_args: Any, **_kwargs: Any) -> None:
            raise AssertionError

        functools.update_wrapper(called, self.function)
        called.__signature__ = self.signature  # type: ignore[attr-defined]
        return called

    def check_found(self) -> None:
        """Refuse a function whose name refers to another object. Not for use while its module is executed.

        Raises:
            ConfigurationError: The name refers to another object in the module, which the worker would run.
        """
        found: Any = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            found = getattr(found, part, None)
        if getattr(type(found), "_airflow_is_task_decorator", False):
            found = found.function
        if found is not self.function:
            raise ConfigurationError(
                f"{_title(self.function)}: its module has something else under this name, and a glide-mq "
                "worker would call that: give each function a unique name at the top level"
            )

    def _check_signature(self) -> None:
        title, parameters = _title(self.function), list(inspect.signature(self.function).parameters.values())
        if self.is_spark:
            if len(parameters) < 2 or any(one.kind not in _BY_NAME[:1] for one in parameters[:2]):
                raise ConfigurationError(
                    f"{title} must take (spark, ctx, ...): the worker's session and the job's context"
                )
            parameters = parameters[2:]
        for one in parameters:
            if one.kind is inspect.Parameter.VAR_KEYWORD:
                if one.name == "context":
                    raise ConfigurationError(f"{title} needs Airflow's context (**context){_NO_CONTEXT}")
            elif one.kind not in _BY_NAME:
                bare = one.replace(annotation=one.empty, default=one.empty)
                raise ConfigurationError(
                    f"{title} takes positional arguments ({bare}), but a job passes arguments by "
                    "name; take a list instead"
                )
        if asking := _ASKING.intersection(inspect.unwrap(self.function).__code__.co_names):
            raise ConfigurationError(f"{title} needs Airflow's context ({min(asking)}){_NO_CONTEXT}")

    def check_context(self, args: Collection[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """Refuse a call that leaves parameters to be filled from Airflow's context.

        Raises:
            ConfigurationError: The call does; the message names the parameters.
            TypeError: The function does not take these arguments.
        """
        given = self.signature.bind_partial(*args, **(kwargs or {})).arguments
        wanted = [one for one in self.signature.parameters if one in KNOWN_CONTEXT_KEYS and one not in given]
        if wanted:
            raise ConfigurationError(
                f"{_title(self.function)} needs Airflow's context ({', '.join(wanted)}){_NO_CONTEXT}"
            )


_NO_CONTEXT: Final = (
    ', which a glide-mq worker does not have: pass what it needs as arguments, such as day="{{ ds }}"'
)


def _title(function: object) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"function {name}"


def _nameless(function: Any) -> str:
    """Why the function has no name at the top level of a module; empty if it has one."""
    if "<lambda>" in function.__qualname__:
        return "is a lambda"
    if "<locals>" in function.__qualname__:
        return "is defined inside another function"
    return "" if "." not in function.__qualname__ else "is a method"


def _module_of(function: Any) -> str:
    """The module name under which another process imports the function."""
    name: str = function.__module__
    module = sys.modules.get(name)
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name:
            return str(spec.name).removesuffix(".__main__")
    elif not name.startswith(_DAG_MODULE):
        return name
    return _module_at(_file_of(module, function), _title(function))


def _file_of(module: ModuleType | None, function: Any) -> Path:
    found = getattr(module, "__file__", None) or function.__code__.co_filename
    return Path(found).resolve()


@functools.cache
def bundle_folders() -> tuple[Path, ...]:
    """The roots of Airflow's DAG bundles; of a versioned one, the folder that follows its branch."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager  # noqa: PLC0415  not for each DAG file

    bundles = DagBundlesManager().get_all_dag_bundles()  # type: ignore[no-untyped-call]
    return tuple(bundle.path for bundle in bundles)


def _module_at(file: Path, title: str) -> str:
    """The module name of a file: its path in its DAG bundle, else in the nearest folder of ``sys.path``."""
    folder = _nearest(file, bundle_folders()) or _nearest(file, map(Path, sys.path))
    if folder is None:
        raise ConfigurationError(
            f"{title}: {file} is in no DAG bundle and in no folder of sys.path, so no worker can import it: "
            "move the function to a module that can be imported"
        )
    parts = file.relative_to(folder).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f"{title}: {file.name} has no name that can be imported ({name}): rename the file, or move the "
            "function to another"
        )
    return name


def _nearest(file: Path, folders: Iterable[Path]) -> Path | None:
    """The innermost of the folders that contain the file."""
    resolved = [folder.resolve() for folder in folders]
    around = [folder for folder in resolved if folder.is_dir() and file.is_relative_to(folder)]
    return max(around, key=lambda folder: len(folder.parts), default=None)
