"""A function that a job names, and its arguments: ``{"callable": "module:function", "arguments": {...}}``.

The module must be in a package that the worker was started with (``allow_import``). An argument may also
be, or contain, the result of a dependency: ``"inputs": [{"node": "load", "path": ["rows"], "to": ["data",
0]}]`` puts ``rows`` of the result of the node ``load`` into the first item of the argument ``data``. Unless
a node ``clean[*]`` exists, that name means the list of the results of ``clean[0]``, ``clean[1]``, ..., as far
as they exist. With ``"array": true`` the node is an array, and the list has the results of its elements.

An element of an array has further arguments in ``item``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, EncodeError, NodeNotFound
from glidemq_orchestrate.flows.pattern import ALL
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import shown_path
from glidemq_orchestrate.wire.codec import Json, encode
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.results import why_not_json
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

logger = logging.getLogger("glidemq_orchestrate.worker")

PIPES: Final = "dagster_pipes"
"""The field of a job for ``open_pipes``; functions do not receive it."""
_FIELDS: Final = frozenset({"callable", "arguments", "inputs", PIPES})
_ITEM: Final = "item"
_ONLY_ON_AIRFLOW: Final = (
    ". A DAG file needs Airflow. Fix: install airflow-provider-glidemq for the worker too, or move the "
    "function to a module that does not import Airflow, and import it in the DAG file"
)


class InvalidCall(Unrecoverable):
    """The payload does not describe a valid call; another attempt would fail in the same way."""


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A checked payload: its title in messages, the function, and its arguments by name."""

    title: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    @classmethod
    def of(cls, ctx: Context, what: str, *, fields: Collection[str] = ()) -> NamedCall:
        """Check the payload of a job, import its function, and insert the results of dependencies.

        Args:
            ctx: The job.
            what: The kind of function, for messages.
            fields: Further fields that the payload may have.

        Raises:
            InvalidCall: A field is missing or of the wrong type, the function is not in an allowed package or
                cannot be imported, or a result lacks the requested part. The message names the function.
        """
        data = ctx.data
        if not isinstance(data, dict):
            raise InvalidCall(f"a {ctx.name} job needs an object with callable and arguments as its data")
        name = data.get("callable")
        if not isinstance(name, str) or not name:
            raise InvalidCall(f"a {ctx.name} job needs a callable: a string package.module:function")
        title = f"{what} {name}"
        arguments = data.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise InvalidCall(f"{title}: arguments must be an object of values by parameter name")
        item = data.get(_ITEM, {}) if ctx.index is not None else {}
        if not isinstance(item, dict):
            raise InvalidCall(
                f"{title}: the item of an element must be an object of values by parameter name"
            )
        known = {*_FIELDS, *fields, *([_ITEM] if ctx.index is not None else [])}
        if unknown := sorted(set(data) - known):
            raise InvalidCall(f"{title}: unknown field {', '.join(unknown)}; arguments go under arguments")
        filled = {**arguments, **item}
        put_inputs(title, filled, data.get("inputs"), results_for(ctx, data.get("inputs")))
        return cls(title, _imported(title, name, ctx.allow_import), filled)

    def check(self, leading: int = 0, supplied: Mapping[str, object] = MappingProxyType({})) -> None:
        """Refuse arguments that, with those that the worker supplies, do not match the parameters.

        Raises:
            InvalidCall: They do not match.
        """
        try:
            signature = inspect.signature(self.function)
        except ValueError:
            return  # a callable without a readable signature: the call itself will fail
        try:
            signature.bind(*[None] * leading, **{**self.arguments, **supplied})
        except TypeError as exc:
            names = [name for name in list(signature.parameters)[leading:] if name not in supplied]
            why = f"{exc}{_unknown(signature, self.arguments, names, str(exc))}"
            raise InvalidCall(f"{self.title}: it does not take these arguments: {why}") from exc

    def checked(self, result: Any, remedy: str) -> Json:
        """The result of the function.

        Raises:
            InvalidCall: It is not JSON, or is too large. The message names the place and the type, and ends
                with a conversion, or with ``remedy``.
        """
        try:
            encode(result, where=f"result of {self.title}")
        except EncodeError as exc:
            raise InvalidCall(why_not_json(exc, result, remedy)) from exc
        returned: Json = result
        return returned


def _unknown(signature: inspect.Signature, given: Mapping[str, Json], names: list[str], error: str) -> str:
    """What to add to an error about arguments: one that is no parameter, and the nearest parameter."""
    if any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        return ""
    unknown = next((name for name in given if name not in signature.parameters), None)
    if unknown is None:
        return ""
    text = "" if repr(unknown) in error else f"; there is no parameter {unknown!r}"
    return text + did_you_mean(unknown, names)


def _imported(title: str, name: str, allowed: Sequence[str]) -> Callable[..., Any]:
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise InvalidCall(f"{title}: the callable must be written package.module:function")
    try:
        module = import_allowed(module_name, allowed)
    except ImportNotAllowed as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    except Exception as exc:
        missing = (exc.name or "") if isinstance(exc, ModuleNotFoundError) else ""
        remedy = ""
        if missing.partition(".")[0].startswith("airflow"):
            remedy = _ONLY_ON_AIRFLOW
        elif missing and f"{module_name}.".startswith(f"{missing}."):
            remedy = ". Fix: install it for the worker, or start the worker in its directory"
        elif missing:
            remedy = f". Fix: install {missing.partition('.')[0]} for the worker"
        raise InvalidCall(
            f"{title}: importing {module_name} failed: {type(exc).__name__}: {exc}{remedy}"
        ) from exc
    try:
        target = undecorated(follow(module, path, allowed), allowed)
    except ImportNotAllowed as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    except AttributeError as exc:
        # Show its file: another module of that name may come first on the import path of the worker.
        place = getattr(module, "__file__", None) or "built in"
        names = [known for known, thing in list(vars(module).items()) if callable(thing)]
        near = did_you_mean(path, names) or "."
        raise InvalidCall(
            f"{title}: module {module_name} ({place}) has no {path}{near} "
            "Fix: if it was added after the start of the worker, "
            f"restart the worker on {socket.gethostname()}"
        ) from exc
    if not callable(target):
        raise InvalidCall(f"{title}: {path} is not a function")
    function: Callable[..., Any] = target
    return function


def results_for(ctx: Context, inputs: Any) -> Mapping[str, Json]:
    """The inputs of a job, and the results of the arrays that ``inputs`` names. For plain handlers.

    Raises:
        RuntimeError: Arrays cannot be read here.
    """
    listed = [one for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    names = dict.fromkeys(str(one.get("node")) for one in listed if one.get("array"))
    return {**ctx.inputs, **{name: _elements(ctx, name) for name in names}} if names else ctx.inputs


def _elements(ctx: Context, name: str) -> list[Json]:
    """The results of the elements of an array; none if its list was empty, so that it does not exist."""
    with suppress(NodeNotFound):
        return list(ctx.flow.array_results(name).values())
    return []


def put_inputs(title: str, arguments: dict[str, Any], inputs: Json, results: Mapping[str, Json]) -> None:
    """Insert results of dependencies into arguments.

    Raises:
        InvalidCall: There is no such place or result, or ``inputs`` is malformed.
    """
    for item in [] if inputs is None else inputs if isinstance(inputs, list) else [inputs]:
        if not (
            isinstance(item, dict)
            and isinstance(item.get("node"), str)
            and isinstance(path := item.get("path", []), list)
            and isinstance(place := item.get("to"), list)
            and place
        ):
            raise InvalidCall(f'{title}: each of inputs must be {{"node": name, "path": [...], "to": [...]}}')
        node = str(item["node"])
        value = _result(node, results)
        try:
            for step in path if node in results else []:
                value = value[step]
        except (KeyError, IndexError, TypeError) as exc:
            raise InvalidCall(f"{title}: the result of node {node} has no {shown_path(path)}") from exc
        try:
            target: Any = arguments
            for step in place[:-1]:
                target = target[step]
            target[place[-1]] = value
        except (KeyError, IndexError, TypeError) as exc:
            raise InvalidCall(f"{title}: its arguments have no place {shown_path(place)}") from exc


def _result(node: str, results: Mapping[str, Json]) -> Any:
    """The result of a node, or of all nodes of a list; skipped nodes have none."""
    if node in results or not node.endswith(ALL):
        return results.get(node)
    start = node.removesuffix(ALL) + "["
    places = {
        int(inside): name
        for name in results
        if name.startswith(start)
        and (inside := name[len(start) : -1]).isdecimal()
        and name == f"{start}{inside}]"
    }
    return [results[places[place]] for place in sorted(places)]


class ImportNotAllowed(Exception):
    """The worker was not started with a package that contains this module; nothing was imported.

    The message names the ``package`` to allow, if it is known.
    """

    def __init__(self, module: str, allowed: Sequence[str], package: str = "") -> None:
        may = f"from {', '.join(allowed)}" if allowed else "nothing that a job names"
        option = f"--allow-import {package or 'PACKAGE'}"
        argument = f"Worker(allow_import=[{repr(package) if package else '...'}])"
        super().__init__(
            f"this worker may not import {module}: it imports {may}. "
            f"Fix: start the worker with {option}, or {argument}"
        )


def check_packages(names: Sequence[str]) -> tuple[str, ...]:
    """The packages of an allow-list, checked. Those that cannot be found are reported in the log.

    Raises:
        ConfigurationError: It is not a list, or an entry is not the dotted name of a package or module.
    """
    if isinstance(names, str):
        raise ConfigurationError(f"allow_import must be a list of packages, got the text {names[:100]!r}")
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigurationError(
                f"allow_import: {str(name)[:100]!r} is not the name of a package, such as mypackage.steps"
            )
    if missing := [name for name in names if not _is_found(name.partition(".")[0])]:
        text = "allow_import: there is no module %s. Fix: correct it, install it, or start in its directory"
        logger.warning(text, ", ".join(missing), extra={"action": "start"})
    return tuple(dict.fromkeys(names))


def _is_found(module: str) -> bool:
    """Whether a top-level module can be found, without importing it; yes if the search fails."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except Exception:  # noqa: BLE001  of any finder on sys.meta_path; the job that imports it reports it
        return True


def is_allowed(module: str, allowed: Sequence[str]) -> bool:
    """Whether a module is one of the packages, or inside one. Whole parts of the name are compared.

    A part that is not an identifier, as in ``mypackage./tmp/x`` or ``mypackage..x``, is in no package; nor is
    a part such as ``__main__``, whose import runs the program of the package.
    """
    return any(
        module == package or (module.startswith(f"{package}.") and _are_names(module[len(package) + 1 :]))
        for package in allowed
    )


def import_allowed(module: str, allowed: Sequence[str]) -> ModuleType:
    """Import a module that a job names.

    Raises:
        ImportNotAllowed: It is in none of the packages; nothing was imported.
        Exception: The import raised it.
    """
    if not is_allowed(module, allowed):
        is_to_name = _are_names(module) and module.partition(".")[0] not in sys.stdlib_module_names
        raise ImportNotAllowed(module, allowed, module.rpartition(".")[0] or module if is_to_name else "")
    with importing():
        return importlib.import_module(module)


def follow(module: ModuleType, path: str, allowed: Sequence[str]) -> Any:
    """The object at a path of attributes in a module, such as ``Report.build``.

    Raises:
        ImportNotAllowed: The path leaves the packages: through another module (``os.system`` where ``os`` is
            imported), to a function or class that is imported from elsewhere, or through a special attribute
            (``f.__globals__``).
        AttributeError: There is no such attribute.
    """
    target: Any = module
    for part in path.split("."):
        if _is_special(part):
            raise ImportNotAllowed(f"{module.__name__}:{path}", allowed)
        target = getattr(target, part)
        home = _home_of(target)
        if home is not None and not is_allowed(home, allowed):
            raise ImportNotAllowed(home, allowed)
    return target


def undecorated(target: Any, allowed: Sequence[str]) -> Any:
    """The function inside Airflow's ``@task``; any other object is returned unchanged.

    Raises:
        ImportNotAllowed: The function is defined outside the packages.
    """
    if getattr(type(target), "_airflow_is_task_decorator", False) is not True:
        return target
    home = _home_of(target.function)
    if home is not None and not is_allowed(home, allowed):
        raise ImportNotAllowed(home, allowed)
    return target.function


def _home_of(target: Any) -> str | None:
    """The module itself, or the module that defines an object; None for a value."""
    if isinstance(target, ModuleType):
        return target.__name__
    if isinstance(target, partial):
        return _home_of(target.func)
    if isinstance(target, type) or inspect.isroutine(target):
        home = target.__module__  # None for a method of a built-in type
        return home if isinstance(home, str) else "builtins"
    return None


def _are_names(path: str) -> bool:
    return all(part.isidentifier() and not _is_special(part) for part in path.split("."))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
