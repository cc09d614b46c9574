"""The server's function libraries: checked once per client, and reloaded when lost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

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
    Primary,
    cluster_primaries,
    library_code,
    load_library,
    server_facts,
    server_info,
)
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Batch, Call, Op, ask, function, survey

SUPPORTED_VERSION: Final = "93"
LOADS: Final = 5


def glidemq_version() -> Call[str]:
    """Version of the loaded ``glidemq`` library; if versions differ, an unsupported one."""

    def oddest(found: Sequence[Any]) -> Any:
        return next((reply for reply in found if reply != SUPPORTED_VERSION), found[0])

    return survey(function("glidemq_version", (), (), replies.text), oddest)


def orchestrate_version() -> Call[tuple[str, str]]:
    """Version and sha256 of the loaded ``glidemq_orchestrate`` library; if they differ, a deviating one."""
    ours = library(ORCHESTRATE)

    def decode(reply: Any) -> tuple[str, str]:
        if not isinstance(reply, list) or len(reply) != 2:
            raise ProtocolError("the reply of gmo_version is not a version and a sha256")
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
    """A version as a tuple for comparisons."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """One function library on one server.

    Attributes:
        name: ``glidemq`` or ``glidemq_orchestrate``.
        loaded: Whether the server has a library of this name.
        ours: Whether its source is the one shipped in this package.
        version: Its own report; None without one.
        sha256: The hash of the source on the server.
    """

    name: str
    loaded: bool
    ours: bool
    version: str | None
    sha256: str | None


def ensure_libraries() -> Op[None]:
    """Check the server's version and load missing libraries. Never replaces another program's library.

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
        yield from _load(ours, replace=True)


def repeat_lost(calls: Sequence[Call[Any]], replies: list[Any]) -> Op[list[Any]]:
    """Load the libraries that calls have not found, and repeat these calls; returns all replies.

    A library may be lost again before the repeat, by another flush or a failover. After several losses in a
    row the error remains.
    """
    for _ in range(LOADS):
        lost = [number for number, reply in enumerate(replies) if isinstance(reply, LibraryMissing)]
        if not lost:
            break
        yield from _load_again()
        again = yield Batch(tuple(calls[number] for number in lost))
        for number, reply in zip(lost, again, strict=True):
            replies[number] = reply
    return replies


def _load_again() -> Op[None]:
    """Load the lost libraries.

    Raises:
        ServerBusy: The user may not load them, and need not: a primary that becomes a replica lacks functions
            for a moment.
    """
    try:
        with suppress(LibraryMissing):  # lost during the check: the repeated call detects that
            yield from ensure_libraries()
    except ConfigurationError:
        if (yield from ask(server_facts())).get("role") == "slave":
            raise ServerBusy("the server has become a replica and has no functions yet") from None
        raise


def library_status() -> Op[list[LibraryStatus]]:
    """The status of both libraries on the server. Changes nothing.

    For a user who may not list libraries it is what they report themselves.
    """
    try:
        return (yield from _listed())
    except ConfigurationError:
        return (yield from _by_version())


def _listed() -> Op[list[LibraryStatus]]:
    """The status of both libraries by their sources."""
    yield from ask(server_info())
    theirs = yield from _status_of(library(GLIDEMQ))
    own = yield from _status_of(library(ORCHESTRATE))
    return [theirs, own]


def _by_version() -> Op[list[LibraryStatus]]:
    """The status of the libraries as reported by their own functions."""
    found: list[LibraryStatus] = []
    for name in (GLIDEMQ, ORCHESTRATE):
        version, sha256 = None, None
        try:
            if name == GLIDEMQ:
                version = yield from ask(glidemq_version())
            else:
                version, sha256 = yield from ask(orchestrate_version())
        except (LibraryMissing, ConfigurationError):
            pass
        ours = sha256 == library(name).sha256 if sha256 else version == SUPPORTED_VERSION
        found.append(
            LibraryStatus(name, loaded=version is not None, ours=ours, version=version, sha256=sha256)
        )
    return found


def install_libraries(*, replace: bool) -> Op[list[LibraryStatus]]:
    """Load missing libraries, update our own, and return the status afterwards.

    With ``replace`` every different library is replaced, even a ``glidemq`` that another program loaded.

    Raises:
        LibraryError: A ``glidemq`` that is not ours was left unchanged. Missing libraries were loaded.
        LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left unchanged.
    """
    before = yield from _listed()
    for status in before:
        shipped = library(status.name)
        if not status.loaded:
            yield from _load(shipped)
        elif not status.ours and (replace or _is_older(status, shipped)):
            yield from _load(shipped, replace=True)
    after = yield from _listed()
    for status in after:
        if status.ours:
            continue
        if status.name == ORCHESTRATE:
            raise LibraryVersionMismatch(
                ORCHESTRATE, status.version or "unknown", library(ORCHESTRATE).version
            )
        raise LibraryError(
            f"the server has another glidemq library (version {status.version or 'unknown'}); "
            "it was left unchanged. Fix: to replace it with ours, glidemq library load --replace"
        )
    return after


def primaries() -> Op[list[Primary]]:
    """The primaries of the cluster; empty if the server is not in a cluster.

    Raises:
        ConfigurationError: It is in a cluster, and the user may not list its nodes.
    """
    try:
        return (yield from ask(cluster_primaries()))
    except ProtocolError:
        return []
    except ConfigurationError:
        if (yield from ask(server_facts())).get("cluster_enabled") == "1":
            raise
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
        pass  # this library does not report its version
    except ServerBusy:  # the server refuses functions that may write
        version = shipped.version if code == shipped.source else None
    digest = hashlib.sha256(code.encode()).hexdigest()
    return LibraryStatus(
        shipped.name, loaded=True, ours=code == shipped.source, version=version, sha256=digest
    )


def _is_older(status: LibraryStatus, shipped: Library) -> bool:
    """Whether it is another build of our own library and not newer, so that it may be replaced."""
    return shipped.name == ORCHESTRATE and numbers(status.version or "0") <= numbers(shipped.version)


def _load(shipped: Library, *, replace: bool = False) -> Op[None]:
    """Load a library.

    Raises:
        ConfigurationError: The user may not.
    """
    try:
        yield from ask(load_library(shipped.source, replace=replace))
    except ConfigurationError as exc:
        if exc.code != "NOPERM":
            raise
        what = f"another version of the library {shipped.name}" if replace else f"no library {shipped.name}"
        error = ConfigurationError(
            f"the server has {what}, and this user may not load it. "
            "Fix: glidemq library load, as a user who may run FUNCTION LOAD"
        )
        error.code = exc.code
        raise error from exc
    except ProtocolError as exc:
        if "already exists" not in str(exc):  # another client loaded it at the same moment
            raise
