"""The data sets that a Spark step reads and writes, as far as known. Needs no PySpark.

It is in the data of the job, in the result of the step, or in both::

    "lineage": {"inputs": ["s3a://lake/raw/2026-01-01"], "outputs": ["/data/clean"]}

A data set is a path, a URI, or ``{"namespace": ..., "name": ...}``. OpenLineage in Airflow reads the
lineage there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from glidemq_orchestrate.wire.codec import Json

FIELD: Final = "lineage"
_SIDES: Final = ("inputs", "outputs")
_OBJECT_STORES: Final = frozenset({"s3", "gs"})
_S3: Final = frozenset({"s3", "s3a", "s3n"})
_WITH_CONTAINER: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})  # container@account


class Dataset(NamedTuple):
    """A data set as OpenLineage names it: ``("s3://lake", "raw/flights")``, ``("file", "/data/raw")``."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The data sets that are read and written, each once, in the order in which they were named."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()

    @classmethod
    def of(cls, value: Json) -> Lineage:
        """Read the lineage in the data or the result of a job; an empty one if there is none.

        Raises:
            ValueError: It is malformed; the message names the part.
        """
        found = value.get(FIELD) if isinstance(value, dict) else None
        if found is None:
            return cls()
        if not isinstance(found, dict) or set(found) - set(_SIDES):
            raise ValueError(f"{FIELD} must be an object with inputs and outputs")
        inputs, outputs = (_datasets(side, found.get(side)) for side in _SIDES)
        return cls(inputs, outputs)

    @classmethod
    def together(cls, parts: Iterable[Lineage]) -> Lineage:
        """The lineage of several steps as one: what one of them writes is not an input of the whole."""
        known = list(parts)
        outputs = dict.fromkeys(one for part in known for one in part.outputs)
        inputs = dict.fromkeys(one for part in known for one in part.inputs if one not in outputs)
        return cls(tuple(inputs), tuple(outputs))


def _datasets(side: str, given: Json) -> tuple[Dataset, ...]:
    if isinstance(given, list):
        return tuple(dict.fromkeys(_dataset(side, one) for one in given))
    if given is None:
        return ()
    raise ValueError(f"{FIELD}: {side} must be a list")


def _dataset(side: str, given: Json) -> Dataset:
    if isinstance(given, dict):
        namespace, name = given.get("namespace"), given.get("name")
        if isinstance(namespace, str) and namespace and isinstance(name, str) and name:
            return Dataset(namespace, name)
    elif isinstance(given, str) and (found := _located(given)) is not None:
        return found
    raise ValueError(
        f'{FIELD}: each of {side} must be an absolute path, a URI, or {{"namespace": ..., "name": ...}}'
    )


def _located(text: str) -> Dataset | None:
    if text.startswith("/"):
        return Dataset("file", text.rstrip("/") or "/")
    parts = urlsplit(text)
    path = unquote(parts.path)
    if parts.scheme == "file" and path.startswith("/"):
        return Dataset("file", path.rstrip("/") or "/")
    if not parts.scheme or not parts.netloc:
        return None
    scheme = "s3" if parts.scheme in _S3 else parts.scheme
    place = parts.netloc.rpartition("@")[2] if scheme not in _WITH_CONTAINER else parts.netloc
    return Dataset(f"{scheme}://{place}", _named(scheme, path))


def _named(scheme: str, path: str) -> str:
    path = path.rstrip("/")
    return path.lstrip("/") or "/" if scheme in _OBJECT_STORES else path or "/"
