"""What the step that runs here comes after: the versions that results of its dependencies name.

A dependency's result is accepted, and the step begins, a moment before its version is made. A step must not
read a location as it was before the steps that it comes after. So each step makes the versions of those right
before it when it begins, for itself and for all that come after it; what cannot be made then is tried again
by whoever reads it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.acceptance import make_versions
from glidemq_orchestrate.spark.published.version import Publication, found
from glidemq_orchestrate.wire.codec import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_MADE: Final = 1_000
"""So many versions are made before a step begins: each is a look at a file at least."""
_inputs: Final[contextvars.ContextVar[Mapping[str, Json]]] = contextvars.ContextVar(
    "inputs", default=MappingProxyType({})
)


@contextmanager
def coming_after(inputs: Mapping[str, Json], spark: SparkSession) -> Iterator[None]:
    """Run a block as a step with these results of its dependencies, whose versions are made."""
    places = (place for result in inputs.values() for place in found(result))
    make_versions(islice(places, MAX_MADE), spark)
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


def published_before(location: str) -> Iterator[Publication]:
    """What the dependencies of the step that runs here have published at a location."""
    for result in _inputs.get().values():
        yield from (place for place in found(result) if place.location == location)
