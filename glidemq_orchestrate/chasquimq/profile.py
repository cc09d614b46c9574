"""What the server can do for ChasquiMQ: everything, or only what our own clients and workers need."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.server.calls import server_info
from glidemq_orchestrate.wire.call import Op, ask

_FULL: Final = (8, 6)


class Profile(StrEnum):
    """``FULL``: ChasquiMQ's own workers and producers run, too. ``OWN``: only those of this package do."""

    FULL = "full"
    OWN = "own"


def server_profile(*, require_chasquimq: bool) -> Op[Profile]:
    """The profile of the server: full on Redis 8.6 or newer.

    Raises:
        ConfigurationError: ``require_chasquimq``, and ChasquiMQ's own workers cannot run there.
        ServerTooOld: The server is older than Redis 7.0 or Valkey 7.2.
    """
    product, version = yield from ask(server_info())
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if product == "redis" and numbers >= _FULL:
        return Profile.FULL
    if require_chasquimq:
        raise ConfigurationError(
            f"the server is {product} {version}, and workers of ChasquiMQ need Redis 8.6 or newer. "
            "Fix: use such a server, or only clients and workers of this package"
        )
    return Profile.OWN
