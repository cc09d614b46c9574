"""What the step that runs here comes after: the versions that results of its dependencies name.

A dependency's result is accepted, and the step begins, a moment before its version is made. A step must not
read a location as it was before the steps that it comes after.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.spark.published.version import Publication, found

_inputs: Final[contextvars.ContextVar[Mapping[str, Json]]] = contextvars.ContextVar(
    "inputs", default=MappingProxyType({})
)


@contextmanager
def coming_after(inputs: Mapping[str, Json]) -> Iterator[None]:
    """Run a block as a step with these results of its dependencies."""
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


def published_before(location: str) -> Iterator[Publication]:
    """What the dependencies of the step that runs here have published at a location."""
    for result in _inputs.get().values():
        yield from (place for place in found(result) if place.location == location)
