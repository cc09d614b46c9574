"""The server's function libraries: checked once per client, loaded again whenever they are lost."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, Library, library
from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request, ask
from glidemq_orchestrate._protocol.server import libraries
from glidemq_orchestrate._protocol.server.server import (
    cluster_primaries,
    library_code,
    load_library,
    server_info,
)
from glidemq_orchestrate.errors import (
    GlideMQError,
    LibraryError,
    LibraryMissing,
    LibraryVersionMismatch,
    ProtocolError,
)

T = TypeVar("T")

LOADS: Final = 5


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """One function library on one server.

    Attributes:
        name: ``glidemq`` or ``glidemq_orchestrate``.
        loaded: The server has a library of this name.
        ours: It is the very source that this package ships.
        version: What it says about itself; None when it says nothing.
        sha256: Of the source that the server has.
    """

    name: str
    loaded: bool
    ours: bool
    version: str | None
    sha256: str | None


def ensure_libraries() -> Op[None]:
    """Check the server's version and load what is missing. A library of somebody else is never replaced.

    Raises:
        ServerTooOld: The server has no functions.
        LibraryVersionMismatch: Another version of glide-mq's library, or a newer one of ours, is loaded.
    """
    yield from ask(server_info())
    try:
        found = yield from ask(libraries.glidemq_version())
    except LibraryMissing:
        yield from _load(library(GLIDEMQ))
    else:
        if found != libraries.SUPPORTED_VERSION:
            raise LibraryVersionMismatch(GLIDEMQ, found, libraries.SUPPORTED_VERSION)
    ours = library(ORCHESTRATE)
    try:
        version, sha256 = yield from ask(libraries.orchestrate_version())
    except LibraryMissing:
        yield from _load(ours)
        return
    if numbers(version) > numbers(ours.version):
        raise LibraryVersionMismatch(ORCHESTRATE, version, ours.version)
    if (version, sha256) != (ours.version, ours.sha256):
        yield from ask(load_library(ours.source, replace=True))


def with_libraries(op: Op[T]) -> Op[T]:
    """Run an operation; where a reply says that a library is gone, load it and ask the same again.

    It may be lost again between loading and asking: on a server that is emptied more than once, or one that a
    failover replaces. After some times in a row the operation is told.
    """
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
        for _ in range(LOADS):
            try:
                return (yield request)
            except LibraryMissing:
                yield from _load_again()
        return (yield request)
    replies = list((yield request))
    for _ in range(LOADS):
        lost = [index for index, reply in enumerate(replies) if isinstance(reply, LibraryMissing)]
        if not lost:
            break
        yield from _load_again()
        again = yield Batch(tuple(request.calls[index] for index in lost))
        for index, reply in zip(lost, again, strict=True):
            replies[index] = reply
    return replies


def _load_again() -> Op[None]:
    with suppress(LibraryMissing):  # gone while they were being looked at: asking again tells
        yield from ensure_libraries()


def library_status() -> Op[list[LibraryStatus]]:
    """What is on the server. Changes nothing."""
    yield from ask(server_info())
    theirs = yield from _status_of(library(GLIDEMQ))
    own = yield from _status_of(library(ORCHESTRATE))
    return [theirs, own]


def install_libraries(*, replace: bool) -> Op[list[LibraryStatus]]:
    """Load what is missing, bring our own library up to date, and answer what is there then.

    With ``replace`` everything that differs is replaced, also a ``glidemq`` of somebody else.

    Raises:
        LibraryError: A ``glidemq`` that is not ours was left alone. What was missing is loaded all the same.
        LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left alone.
    """
    before = yield from library_status()
    for status in before:
        wanted = library(status.name)
        if not status.loaded:
            yield from _load(wanted)
        elif not status.ours and (replace or _is_older(status, wanted)):
            yield from ask(load_library(wanted.source, replace=True))
    after = yield from library_status()
    for status in after:
        if status.ours:
            continue
        if status.name == ORCHESTRATE:
            raise LibraryVersionMismatch(
                ORCHESTRATE, status.version or "unknown", library(ORCHESTRATE).version
            )
        raise LibraryError(
            f"the server has a glidemq library of somebody else (version {status.version or 'unknown'}); "
            "it was left alone. To put ours in its place: glidemq library load --replace"
        )
    return after


def primaries() -> Op[list[tuple[str, int]]]:
    """Host and port of each primary of the cluster; none when the server is in no cluster."""
    try:
        return (yield from ask(cluster_primaries()))
    except ProtocolError:
        return []


def _status_of(shipped: Library) -> Op[LibraryStatus]:
    code = yield from ask(library_code(shipped.name))
    if code is None:
        return LibraryStatus(shipped.name, loaded=False, ours=False, version=None, sha256=None)
    version: str | None = None
    try:
        if shipped.name == GLIDEMQ:
            version = yield from ask(libraries.glidemq_version())
        else:
            version, _ = yield from ask(libraries.orchestrate_version())
    except (LibraryMissing, ProtocolError):
        pass  # a library of this name that does not tell its version
    digest = hashlib.sha256(code.encode()).hexdigest()
    return LibraryStatus(
        shipped.name, loaded=True, ours=code == shipped.source, version=version, sha256=digest
    )


def _is_older(status: LibraryStatus, wanted: Library) -> bool:
    """Of our own library alone: another build of it may be replaced unless it is a newer one."""
    return wanted.name == ORCHESTRATE and numbers(status.version or "0") <= numbers(wanted.version)


def _load(wanted: Library) -> Op[None]:
    try:
        yield from ask(load_library(wanted.source))
    except ProtocolError as exc:
        if "already exists" not in str(exc):  # another client loaded it at the same moment
            raise


def numbers(version: str) -> tuple[int, ...]:
    """A version in a form that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
