"""Libraries of other versions on the server, and workers of other versions beside ours."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, Library, library
from glidemq_orchestrate.server import libraries as of_the_package
from tests.server.connections.topologies import Server

if TYPE_CHECKING:
    from glidemq_orchestrate.testing.chaos.ledger import Ledger
    from tests.chaos.roles import World
    from tests.chaos.round import Process, Round

OLDER: Final = "0.0.9"
NEWER: Final = "99.0"
OURS: Final = tuple(library(name) for name in (ORCHESTRATE, GLIDEMQ))
REGISTERED: Final = re.compile(r"register_function\W+(?:function_name = )?'(gmo_\w+)'")


def of_version(name: str, version: str) -> Library:
    """A library of the package with another version."""
    ours = library(name)
    sha256 = ours.sha256[::-1]
    head = f"'{ours.version}', '{ours.sha256}'"
    assert ours.source.count(head) == 1
    return Library(name, version, sha256, ours.source.replace(head, f"'{version}', '{sha256}'"))


def without_one(source: str, chance: random.Random) -> str:
    """A library without one of its functions, but for the one that tells its version."""
    found = chance.choice([found for found in REGISTERED.finditer(source) if found[1] != "gmo_version"])
    return f"{source[: found.start(1)]}gmo_other{source[found.end(1) :]}"


def become(version: str) -> None:
    """Let this process ship another version of our library."""
    other = of_version(ORCHESTRATE, version)
    replaced: Any = {"library": lambda name: other if name == ORCHESTRATE else library(name)}
    vars(of_the_package).update(replaced)


def playing(version: str, play: Callable[[World, Ledger, int], None]) -> Callable[[World, Ledger, int], None]:
    """A role as another version of the package plays it."""

    def played(world: World, ledger: Ledger, number: int) -> None:
        become(version)
        play(world, ledger, number)

    return played


# --- faults ---


def older_library(at: Round, chance: random.Random) -> None:
    """An older version of our library, often without one of its functions: whoever starts replaces it."""
    source = of_version(ORCHESTRATE, OLDER).source
    _load(at, chance.choice(at.servers), without_one(source, chance) if chance.random() < 0.7 else source)


def newer_library(at: Round, chance: random.Random) -> None:
    """A newer version of our library for a while: who runs goes on, and who starts is refused."""
    _load(at, chance.choice(at.servers), of_version(ORCHESTRATE, NEWER).source)
    _restore_later(at, chance)


def other_glidemq(at: Round, chance: random.Random) -> None:
    """Another version of glide-mq's library for a while: who runs goes on, and who starts is refused."""
    _load(at, chance.choice(at.servers), of_version(GLIDEMQ, chance.choice(("92", "94"))).source)
    _restore_later(at, chance)


def older_worker(at: Round, chance: random.Random) -> None:
    """A worker of an older version beside ours, for a while; it is refused where ours was loaded before."""
    for server in at.servers:
        _load(at, server, of_version(ORCHESTRATE, OLDER).source)
    process = at.join("older_worker")
    at.later(chance.uniform(0.5, 4), lambda: at.kill(process))


def newer_worker(at: Round, chance: random.Random) -> None:
    """A worker of a newer version beside ours, for a while; it replaces our library."""
    process = at.join("newer_worker")
    _restore_later(at, chance, process)


def _load(at: Round, server: Server, source: str) -> None:
    at.ask(server, "FUNCTION", "LOAD", "REPLACE", source)


def _restore_later(at: Round, chance: random.Random, process: Process | None = None) -> None:
    """Put our libraries back on every server, twice: what the process has sent may arrive later."""
    at.refused_until = float("inf")
    end = chance.uniform(0.5, 4)
    if process is not None:
        at.later(end, lambda: at.kill(process))
    for seconds in (end, end + 1):
        for server in at.servers:
            at.later(seconds, partial(_restore, at, server))
    at.later(end + 1, at.refuse_no_longer)


def _restore(at: Round, server: Server) -> None:
    """Put our libraries back, once the server answers; a replica gets them from its primary."""
    role = at.ask(server, "ROLE")
    loads = [("FUNCTION", "LOAD", "REPLACE", ours.source) for ours in OURS]
    is_done = role is not None and (role[0] != "master" or all(at.ask(server, *words) for words in loads))
    if not is_done:
        at.later(0.1, partial(_restore, at, server))
