"""The program that a ``spark.submit`` job names, checked. Pure, but for the packages that it is looked up in.

The payload is::

    {"file": "mypackage.jobs:daily.py",
     "args": ["--day", "2026-01-01", "--rows", null],
     "inputs": [{"node": "load", "path": ["rows"], "to": [3]}],
     "py_files": ["mypackage.jobs:helpers.zip"],
     "conf": {"spark.executor.memory": "8g"}}

``file`` is a file of a package that the worker may import from (``--allow-import``). In its place,
``"application": "s3a://jobs/daily.jar"`` names any path or URI that fits a pattern of the worker's
``GLIDEMQ_SPARK_APPLICATIONS`` (``/opt/jobs/*,s3a://jobs/*``), with ``"class"`` for the main class of a JAR.
``args`` are its arguments; what is no text becomes JSON, and ``inputs`` puts results of dependencies in their
places. ``conf`` holds what any step may ask for (``hosts.session_request``), and some settings of Spark SQL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import as_file, files
from typing import Any, Final, Self
from urllib.parse import unquote

from glidemq_orchestrate.spark.engine import settings_in
from glidemq_orchestrate.spark.hosts.session_request import RESOURCES, check_allowed
from glidemq_orchestrate.spark.settings import setting
from glidemq_orchestrate.wire.codec import Json, encode
from glidemq_orchestrate.worker.handlers.allowed_imports import ImportNotAllowed, import_allowed
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall, put_inputs

JOB_NAME: Final = "spark.submit"
ALLOW_VARIABLE: Final = "GLIDEMQ_SPARK_APPLICATIONS"
SQL_SETTINGS: Final = (
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.files.*",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.partitionOverwriteMode",
)
"""What a payload may set of Spark SQL; others name classes, or are the worker's."""
_FIELDS: Final = frozenset(
    {"file", "application", "class", "args", "inputs", "py_files", "conf", "deploy_mode", "lineage", "user"}
)
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*")


@dataclass(frozen=True, slots=True)
class Application:
    """A program for ``spark-submit``.

    Attributes:
        title: How messages call it.
        path: Its file, or a URI.
        main_class: That of a JAR; empty for any other.
        args: Its arguments.
        py_files: Files that its Python may import.
        conf: The settings that the payload asks for.
    """

    title: str
    path: str
    main_class: str
    args: tuple[str, ...]
    py_files: tuple[str, ...]
    conf: Mapping[str, str]

    @classmethod
    def of(cls, ctx: Context, stack: ExitStack, environment: Mapping[str, str] | None = None) -> Self:
        """Read the payload of a job.

        Args:
            ctx: The job.
            stack: Until it is closed, files of packages that are no files on disk are there.
            environment: For tests.

        Raises:
            InvalidCall: It is not of the form above, or names what this worker may not run.
        """
        data = ctx.data
        if not isinstance(data, dict):
            raise InvalidCall(f"a {JOB_NAME} job needs an object with file or application as its data")
        if unknown := sorted(set(data) - _FIELDS):
            raise InvalidCall(f"a {JOB_NAME} job has no field {', '.join(unknown)}; arguments go under args")
        name = data.get("file") or data.get("application")
        if ("file" in data) == ("application" in data) or not isinstance(name, str):
            raise InvalidCall(f"a {JOB_NAME} job needs either file or application, a string")
        title = f"application {name}"
        if data.get("deploy_mode", "client") != "client":
            raise InvalidCall(
                f'{title}: deploy_mode must be "client": the driver runs beside its worker, '
                "as a driver inside a cluster could be left behind"
            )
        find = _Finder(title, ctx.allow_import, stack, os.environ if environment is None else environment)
        main_class = data.get("class", "")
        if not isinstance(main_class, str) or (main_class and not _CLASS.fullmatch(main_class)):
            raise InvalidCall(f"{title}: class must be the name of a class, such as com.example.Daily")
        return cls(
            title,
            find.file(name) if "file" in data else find.anywhere(name),
            main_class,
            _args(title, data.get("args"), data.get("inputs"), ctx.inputs),
            tuple(find.either(one) for one in _texts(title, "py_files", data.get("py_files"))),
            _conf(title, data, find.environment),
        )


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the files that a payload names, where it may name them."""

    title: str
    allowed: Sequence[str]
    stack: ExitStack
    environment: Mapping[str, str]

    def file(self, name: str) -> str:
        """The path of a file in an allowed package."""
        package, _, path = name.partition(":")
        parts = path.split("/")
        if not package or any(part in {"", ".", ".."} for part in parts):
            raise InvalidCall(f"{self.title}: a file must be written package:path/of/file.py")
        try:
            found = files(import_allowed(package, self.allowed)).joinpath(*parts)
        except ImportNotAllowed as exc:
            raise InvalidCall(f"{self.title}: {exc}") from exc
        except Exception as exc:
            raise InvalidCall(f"{self.title}: {package} cannot be imported: {type(exc).__name__}") from exc
        if not found.is_file():
            raise InvalidCall(f"{self.title}: the package {package} has no file {path}")
        return str(self.stack.enter_context(as_file(found)))

    def anywhere(self, path: str) -> str:
        """A path or URI that the worker allows."""
        patterns = [part.strip() for part in self.environment.get(ALLOW_VARIABLE, "").split(",")]
        if _is_plain(path) and any(fnmatchcase(path, pattern) for pattern in patterns if pattern):
            return path
        raise InvalidCall(
            f"{self.title}: this worker may not run {path}: it runs files of packages, and what "
            f"{ALLOW_VARIABLE} allows (paths and patterns, such as /opt/jobs/*)"
        )

    def either(self, name: str) -> str:
        """One of the two: a name with a colon and no slash before it is in a package."""
        head, colon, _ = name.partition(":")
        return self.file(name) if colon and "/" not in head and "://" not in name else self.anywhere(name)


def _is_plain(path: str) -> bool:
    """Whether a path or URI means what it says: whoever opens a URI decodes it, maybe more than once."""
    if path.startswith("-") or any(character in path for character in ",#?\\") or not path.isprintable():
        return False
    while (decoded := unquote(path)) != path:
        path = decoded
    return ".." not in re.split(r"[/\\]", path) and "\0" not in path


def _args(title: str, given: Json, inputs: Json, results: Mapping[str, Json]) -> tuple[str, ...]:
    if given is not None and not isinstance(given, list):
        raise InvalidCall(f"{title}: args must be a list")
    args: Any = list(given or [])
    put_inputs(title, args, inputs, results)
    texts = tuple(one if isinstance(one, str) else encode(one, where=f"args of {title}") for one in args)
    if any("\0" in text for text in texts):
        raise InvalidCall(f"{title}: args may hold no NUL character")
    return texts


def _texts(title: str, name: str, given: Json) -> list[str]:
    texts = given or []
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise InvalidCall(f"{title}: {name} must be a list of strings")
    return [str(one) for one in texts]


def _conf(title: str, data: Mapping[str, Json], environment: Mapping[str, str]) -> dict[str, str]:
    """What the payload sets: what a session may have, and settings of Spark SQL that name no code."""
    given = settings_in(data.get("conf"), f"{title}: ")
    check_allowed(given, (*RESOURCES, *SQL_SETTINGS), environment)
    return {name: setting(value) for name, value in given.items()}
