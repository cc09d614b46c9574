"""The server's function libraries: checked once per client, loaded again whenever they are lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, Library, library
from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request, ask
from glidemq_orchestrate._protocol.server import load_library, server_info
from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, LibraryVersionMismatch, ProtocolError

T = TypeVar("T")


def ensure_libraries() -> Op[None]:
    """Check the server's version and load what is missing. A library of somebody else is never replaced.

    Raises:
        ServerTooOld: The server has no functions.
        LibraryVersionMismatch: Another version of glide-mq's library, or a newer one of ours, is loaded.
    """
    yield from ask(server_info())
    try:
        found = yield from ask(glidemq.version())
    except LibraryMissing:
        yield from _load(library(GLIDEMQ))
    else:
        if found != glidemq.SUPPORTED_VERSION:
            raise LibraryVersionMismatch(GLIDEMQ, found, glidemq.SUPPORTED_VERSION)
    ours = library(ORCHESTRATE)
    try:
        version, sha256 = yield from ask(orchestrate.version())
    except LibraryMissing:
        yield from _load(ours)
        return
    if _numbers(version) > _numbers(ours.version):
        raise LibraryVersionMismatch(ORCHESTRATE, version, ours.version)
    if (version, sha256) != (ours.version, ours.sha256):
        yield from ask(load_library(ours.source, replace=True))


def with_libraries(op: Op[T]) -> Op[T]:
    """Run an operation; where a reply says that a library is gone, load it and ask the same again, once."""
    try:
        request = next(op)
        while True:
            try:
                reply = yield from _answered(request)
            except GlideMQError as exc:
                request = op.throw(exc)
            else:
                request = op.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()


def _answered(request: Request) -> Generator[Request, Any, Any]:
    if isinstance(request, Call):
        try:
            return (yield request)
        except LibraryMissing:
            yield from ensure_libraries()
            return (yield request)
    replies = list((yield request))
    lost = [index for index, reply in enumerate(replies) if isinstance(reply, LibraryMissing)]
    if lost:
        yield from ensure_libraries()
        again = yield Batch(tuple(request.calls[index] for index in lost))
        for index, reply in zip(lost, again, strict=True):
            replies[index] = reply
    return replies


def _load(wanted: Library) -> Op[None]:
    try:
        yield from ask(load_library(wanted.source))
    except ProtocolError as exc:
        if "already exists" not in str(exc):  # another client loaded it at the same moment
            raise


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
