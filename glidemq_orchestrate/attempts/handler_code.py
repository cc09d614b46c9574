"""Where the code of the handlers of a worker is, as workers register it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from glidemq_orchestrate.wire.codec import readable

MAX_HANDLERS: Final = 1_000
"""A worker registers the code of so many handlers."""
MAX_LENGTH: Final = 200
"""The longest path, with its digest, and the longest file that are registered, in characters."""
NAMED_BY: Final = {
    "python": ("callable",),
    "spark.python": ("callable",),
    "spark.sql": ("file",),
    "spark.submit": ("file", "application"),
}
"""The fields of data that name the code to run, by the name of the job."""
_WITH_DIGEST: Final = re.compile(r"(?P<path>.+) (?P<digest>[0-9a-f]{8})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HandlerCode:
    """Where the code of a handler is: ``etl.steps:clean`` in line 41 of ``etl/steps.py``.

    Attributes:
        path: Module and qualified name of the function below its decorators and ``partial``; of an instance,
            those of its class.
        file: Its file, a colon, and the line where it begins, with its decorators. The file is relative to
            the working directory of the worker or an entry of ``sys.path``, the nearest above it; empty if it
            is in none.
        digest: The first digits of a digest of its source; empty if its file could not be read.
    """

    path: str
    file: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Path and file."""
        return f"{self.path} ({self.file})" if self.file else self.path


def registered_code(codes: Mapping[str, HandlerCode]) -> dict[str, dict[str, str]]:
    """The fields of a registration with the code of handlers, by their names; too long ones are left out."""
    some = list(islice(codes.items(), MAX_HANDLERS))
    paths = {name: f"{code.path} {code.digest}".rstrip() for name, code in some}
    files = {name: code.file for name, code in some if code.file}
    return {"code": _short(paths), "files": _short(files)}


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if len(text) <= MAX_LENGTH}


def read_code(wire: Mapping[str, Any]) -> dict[str, HandlerCode]:
    """The code of handlers in a registration, by their names; what cannot be read is left out."""
    paths, files = _texts(wire.get("code")), _texts(wire.get("files"))
    found: dict[str, HandlerCode] = {}
    for name, text in paths.items():
        match = _WITH_DIGEST.fullmatch(text)
        path, digest = (match["path"], match["digest"]) if match else (text, "")
        found[name] = HandlerCode(path, files.get(name, ""), digest)
    return found


def _texts(value: Any) -> dict[str, str]:
    """The usable texts among the first values of a field."""
    some = islice(value.items(), MAX_HANDLERS) if isinstance(value, dict) else ()
    return {
        readable(name): readable(text)
        for name, text in some
        if isinstance(text, str) and 0 < len(text) <= MAX_LENGTH
    }


def named_code(job: str, data: Any) -> str:
    """The code that a job of this name runs, if its data names it; else empty."""
    fields = data if isinstance(data, dict) else {}
    code = next((fields[name] for name in NAMED_BY.get(job, ()) if fields.get(name)), "")
    return code if isinstance(code, str) else ""
