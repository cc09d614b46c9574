"""Versions of the loaded function libraries, and the supported version of glidemq."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, function
from glidemq_orchestrate.errors import ProtocolError

SUPPORTED_VERSION: Final = "93"


def glidemq_version() -> Call[str]:
    """Version of the loaded ``glidemq`` library."""
    return function("glidemq_version", (), (), replies.text)


def orchestrate_version() -> Call[tuple[str, str]]:
    """Version and sha256 of the loaded ``glidemq_orchestrate`` library."""

    def decode(reply: Any) -> tuple[str, str]:
        if not isinstance(reply, list) or len(reply) != 2:
            raise ProtocolError("the reply of gmo_version is not version and sha256")
        return replies.text(reply[0]), replies.text(reply[1])

    return function("gmo_version", (), (), decode)
