"""The program that a ``spark.submit`` job names, and its settings and arguments for ``spark-submit``.

The payload is::

    {"file": "mypackage.jobs:daily.py",
     "args": ["--day", "2026-01-01", "--rows", null],
     "inputs": [{"node": "load", "path": ["rows"], "to": [3]}],
     "py_files": ["mypackage.jobs:helpers.zip"],
     "conf": {"spark.executor.memory": "8g"}}

``file`` is a file of a package that the worker may import from (``--allow-import``). Instead,
``"application": "s3a://jobs/daily.jar"`` names any path or URI that matches a pattern of the worker's
``GLIDEMQ_SPARK_APPLICATIONS`` (``/opt/jobs/*,s3a://jobs/*``), with ``"class"`` for the main class of a JAR.
``args`` are its arguments: what is not a string becomes JSON, and ``inputs`` replaces some of them by results
of dependencies. ``conf`` holds the settings that any step may set (``setup.request``), and some of Spark SQL.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import as_file
from typing import Any, Final, Self
from urllib.parse import unquote

from glidemq_orchestrate.spark.setup.request import (
    RESOURCES,
    check_allowed,
    identity_of,
    packaged_file,
    settings_in,
)
from glidemq_orchestrate.spark.setup.spark_settings import REDACTED, setting
from glidemq_orchestrate.wire.codec import Json, encode
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
"""The settings of Spark SQL that a payload may set; others name classes, or belong to the worker."""
YARN_TAGS: Final = "spark.yarn.tags"
KUBERNETES_LABEL: Final = "spark.kubernetes.executor.label.glidemq-tag"


_FIELDS: Final = frozenset(
    {"file", "application", "class", "args", "inputs", "py_files", "conf", "deploy_mode", "lineage", "user"}
)
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*")


@dataclass(frozen=True, slots=True)
class Application:
    """A program for ``spark-submit``.

    Attributes:
        title: Its name in messages.
        path: Its file, or a URI.
        main_class: The main class of a JAR; else empty.
        args: Its arguments.
        py_files: Files that its Python can import.
        conf: The settings in the payload.
    """

    title: str
    path: str
    main_class: str
    args: tuple[str, ...]
    py_files: tuple[str, ...]
    conf: Mapping[str, str]

    @classmethod
    def of(cls, ctx: Context, stack: ExitStack, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the payload of a job.

        Args:
            ctx: The job.
            stack: Files of zipped packages exist on disk until it is closed.
            environment: For tests.

        Raises:
            InvalidCall: It is malformed, or names something that this worker may not run.
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
        find = _Finder(title, ctx.allow_import, stack, environment)
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

    def settings(self, ctx: Context, settings: Mapping[str, str], tag: str) -> dict[str, str]:
        """All settings of the driver.

        The tag also goes where a cluster keeps such things, so that everything of a job can be found there:
        to the tags of an application of YARN, and to a label of its pods on Kubernetes.

        Args:
            ctx: The job.
            settings: Those of the worker and of the payload.
            tag: The tag of the driver.
        """
        conf = {
            "spark.app.name": f"{ctx.queue}: {ctx.node or self.path.rpartition('/')[2]} ({ctx.job_id})",
            "spark.ui.port": "0",
            "spark.ui.showConsoleProgress": "false",
            "spark.redaction.regex": REDACTED,
            **settings,
            **identity_of(self.title, ctx),
            "spark.submit.deployMode": "client",  # the cluster's own setting may be another
        }
        if conf["spark.master"].startswith("yarn"):
            conf[YARN_TAGS] = ",".join(filter(None, (conf.get(YARN_TAGS), tag)))
        if conf["spark.master"].startswith("k8s://"):
            conf[KUBERNETES_LABEL] = tag
        return conf

    def arguments(self) -> list[str]:
        """The arguments of ``spark-submit`` after the settings."""
        main_class = ["--class", self.main_class] if self.main_class else []
        py_files = ["--py-files", ",".join(self.py_files)] if self.py_files else []
        return [*main_class, *py_files, self.path, *self.args]

    def digest(self, conf: Mapping[str, str]) -> str:
        """A digest of the program and its settings: a driver with the same one runs the same thing."""
        fields = (self.path, self.main_class, self.args, self.py_files, dict(conf))
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the files that a payload names, and refuses those that it may not name."""

    title: str
    allowed: Sequence[str]
    stack: ExitStack
    environment: Mapping[str, str]

    def file(self, name: str) -> str:
        """The path of a file in an allowed package."""
        found = packaged_file(self.title, name, self.allowed, "package:path/of/file.py")
        return str(self.stack.enter_context(as_file(found)))

    def anywhere(self, path: str) -> str:
        """A path or URI that the worker allows."""
        patterns = [part.strip() for part in self.environment.get(ALLOW_VARIABLE, "").split(",")]
        if _is_plain(path) and any(fnmatchcase(path, pattern) for pattern in patterns if pattern):
            return path
        raise InvalidCall(
            f"{self.title}: this worker may not run {path}: it runs only files of packages, and what "
            f"{ALLOW_VARIABLE} allows (paths and patterns, such as /opt/jobs/*)"
        )

    def either(self, name: str) -> str:
        """A file in a package if the name has a colon with no slash before it; else any allowed path."""
        head, colon, _ = name.partition(":")
        return self.file(name) if colon and "/" not in head and "://" not in name else self.anywhere(name)


def _is_plain(path: str) -> bool:
    """Whether a path or URI is unambiguous, even if a program decodes it more than once."""
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
    """The settings in the payload: those of a session, and those of Spark SQL that name no code."""
    given = settings_in(data.get("conf"), f"{title}: ")
    check_allowed(given, (*RESOURCES, *SQL_SETTINGS), environment)
    return {name: setting(value) for name, value in given.items()}
