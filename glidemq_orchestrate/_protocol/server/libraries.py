"""Versions of the loaded function libraries, and the supported version of glidemq."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, function, survey
from glidemq_orchestrate.errors import ProtocolError

SUPPORTED_VERSION: Final = "93"


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
