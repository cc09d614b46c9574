"""The server's function libraries: checked once per client, loaded again whenever they are lost."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, Library, library
from glidemq_orchestrate.errors import (
    ConfigurationError,
    LibraryError,
    LibraryMissing,
    LibraryVersionMismatch,
    ProtocolError,
    ServerBusy,
)
from glidemq_orchestrate.server.calls import (
    cluster_primaries,
    library_code,
    load_library,
    server_facts,
    server_info,
)
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Batch, Call, Op, Request, ask, each_request, function, survey

SUPPORTED_VERSION: Final = "93"
T = TypeVar("T")
LOADS: Final = 5


def glidemq_version() -> Call[str]:
    """Version of the loaded ``glidemq`` library; of several, one that is not supported."""

    def oddest(found: Sequence[Any]) -> Any:
        return next((reply for reply in found if reply != SUPPORTED_VERSION), found[0])

    return survey(function("glidemq_version", (), (), replies.text), oddest)


def orchestrate_version() -> Call[tuple[str, str]]:
    """Version and sha256 of the loaded ``glidemq_orchestrate`` library; of several, an odd one."""
    ours = library(ORCHESTRATE)

    def decode(reply: Any) -> tuple[str, str]:
        if not isinstance(reply, list) or len(reply) != 2:
            raise ProtocolError("the reply of gmo_version is not version and sha256")
        return replies.text(reply[0]), replies.text(reply[1])

    def oddness(reply: Any) -> int:
        try:
            found = decode(reply)
        except ProtocolError:
            return 3
        if numbers(found[0]) > numbers(ours.version):
            return 2
        return int(found != (ours.version, ours.sha256))

    return survey(function("gmo_version", (), (), decode), lambda found: max(found, key=oddness))


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """One function library on one server.

    Attributes:
        name: ``glidemq`` or ``glidemq_orchestrate``.
        loaded: The server has a library of this name.
        ours: Its source is the one shipped in this package.
        version: The version that it reports; None if it reports none.
        sha256: The hash of the source that the server has.
    """

    name: str
    loaded: bool
    ours: bool
    version: str | None
    sha256: str | None


def ensure_libraries() -> Op[None]:
    """Check the server's version and load what is missing. Another program's library is never replaced.

    Raises:
        ServerTooOld: The server has no functions.
        LibraryVersionMismatch: Another version of glide-mq's library, or a newer one of ours, is loaded.
    """
    yield from ask(server_info())
    try:
        found = yield from ask(glidemq_version())
    except LibraryMissing:
        yield from _load(library(GLIDEMQ))
    else:
        if found != SUPPORTED_VERSION:
            raise LibraryVersionMismatch(GLIDEMQ, found, SUPPORTED_VERSION)
    ours = library(ORCHESTRATE)
    try:
        version, sha256 = yield from ask(orchestrate_version())
    except LibraryMissing:
        yield from _load(ours)
        return
    if numbers(version) > numbers(ours.version):
        raise LibraryVersionMismatch(ORCHESTRATE, version, ours.version)
    if (version, sha256) != (ours.version, ours.sha256):
        yield from ask(load_library(ours.source, replace=True))


def with_libraries(op: Op[T]) -> Op[T]:
    """Run an operation; if a reply means that a library is missing, load it and repeat the call.

    It may be lost again between loading and the repeat: on a server that is emptied more than once, or one
    that a failover replaces. After several losses in a row the error is raised in the operation.
    """
    return each_request(op, _answered)


def _answered(request: Request) -> Generator[Request, Any, Any]:
    """The reply to a request; calls that found no library are repeated after loading it."""
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
    """Load what was lost.

    Raises:
        ServerBusy: The user may not, and need not: a primary that becomes a replica has no functions for a
            moment.
    """
    try:
        with suppress(LibraryMissing):  # lost during the check: the repeat of the call will show it
            yield from ensure_libraries()
    except ConfigurationError:
        if (yield from ask(server_facts())).get("role") == "slave":
            raise ServerBusy("the server has become a replica, and has no functions yet") from None
        raise


def library_status() -> Op[list[LibraryStatus]]:
    """The libraries on the server. Changes nothing."""
    yield from ask(server_info())
    theirs = yield from _status_of(library(GLIDEMQ))
    own = yield from _status_of(library(ORCHESTRATE))
    return [theirs, own]


def install_libraries(*, replace: bool) -> Op[list[LibraryStatus]]:
    """Load what is missing, update our own library, and return the libraries afterwards.

    With ``replace`` everything that differs is replaced, also a ``glidemq`` that another program loaded.

    Raises:
        LibraryError: A ``glidemq`` that is not ours was left unchanged. What was missing is loaded anyway.
        LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left unchanged.
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
            f"the server has another glidemq library (version {status.version or 'unknown'}); "
            "it was left unchanged. To replace it with ours: glidemq library load --replace"
        )
    return after


def primaries() -> Op[list[tuple[str, int]]]:
    """Host and port of each primary of the cluster; none if the server is not in a cluster."""
    try:
        return (yield from ask(cluster_primaries()))
    except ProtocolError:
        return []


def _status_of(shipped: Library) -> Op[LibraryStatus]:
    """Whether a library is loaded, and whether its source is the shipped one."""
    code = yield from ask(library_code(shipped.name))
    if code is None:
        return LibraryStatus(shipped.name, loaded=False, ours=False, version=None, sha256=None)
    version: str | None = None
    try:
        if shipped.name == GLIDEMQ:
            version = yield from ask(glidemq_version())
        else:
            version, _ = yield from ask(orchestrate_version())
    except (LibraryMissing, ProtocolError):
        pass  # a library of this name that does not report its version
    digest = hashlib.sha256(code.encode()).hexdigest()
    return LibraryStatus(
        shipped.name, loaded=True, ours=code == shipped.source, version=version, sha256=digest
    )


def _is_older(status: LibraryStatus, wanted: Library) -> bool:
    """Whether it is our own library and not newer: then another build of it may be replaced."""
    return wanted.name == ORCHESTRATE and numbers(status.version or "0") <= numbers(wanted.version)


def _load(wanted: Library) -> Op[None]:
    try:
        yield from ask(load_library(wanted.source))
    except ProtocolError as exc:
        if "already exists" not in str(exc):  # another client loaded it at the same moment
            raise
