"""Strikes: faults that hit a node in a run of the flow, at a certain moment of its handler.

The strikes of all runs follow from the seed and from the run without strikes. They rotate: every node is hit
at every moment before a node is hit at the same moment again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.worker.handlers.context import Context


class Act(StrEnum):
    """The action of a strike."""

    KILL = "kill"
    """SIGKILL the worker."""
    PAUSE = "pause"
    """Stop the worker for longer than its lease, so that another worker runs its jobs; then resume it."""
    KILL_SERVER = "kill-server"
    """SIGKILL the server; it is restarted with its data."""
    DISCONNECT = "disconnect"
    """Close all connections to the server."""


class Moment(StrEnum):
    """The moment in the run of a handler at which a strike hits."""

    START = "start"
    MIDWAY = "midway"
    BEFORE_EFFECT = "before an effect"
    """Right before a function in ``effects`` is called."""
    AFTER_EFFECT = "after an effect"
    RETURNED = "after the return"
    """The handler has returned, and its result is not reported yet."""


ACTS: Final[Mapping[Moment, Sequence[Act]]] = {
    Moment.START: (Act.KILL,),
    Moment.MIDWAY: (Act.KILL, Act.PAUSE, Act.KILL_SERVER, Act.DISCONNECT),
    Moment.BEFORE_EFFECT: (Act.KILL, Act.PAUSE),
    Moment.AFTER_EFFECT: (Act.KILL, Act.PAUSE),
    Moment.RETURNED: (Act.KILL, Act.PAUSE, Act.KILL_SERVER),
}
OF_SERVER: Final = frozenset({Act.KILL_SERVER, Act.DISCONNECT})


@dataclass(frozen=True, slots=True)
class Calm:
    """The behaviour of a node in the run without strikes.

    Attributes:
        seconds: How long its handler ran.
        effects: How many effects it had.
        calls: How many calls of functions in ``effects`` it started.
    """

    seconds: float
    effects: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Strike:
    """One strike.

    Attributes:
        effect: The number of the effect in the handler, from 1; 0 at other moments.
        after: Seconds after the start of the handler; 0 unless midway.
    """

    node: str
    moment: Moment
    act: Act
    effect: int = 0
    after: float = 0.0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Strike:
        """Create it from the fields of ``asdict``, read from JSON."""
        return cls(**{**fields, "moment": Moment(fields["moment"]), "act": Act(fields["act"])})


def plan(
    seed: int, calm: Mapping[str, Calm], runs: int, acts: Collection[Act] = tuple(Act)
) -> list[list[Strike]]:
    """The strikes of each run.

    Each run has one strike, or as many as are needed to hit every node once in every way. A node is hit at
    most once per run, so full coverage takes at least as many runs as there are ways.
    """
    chance = random.Random(f"strikes {seed}")  # noqa: S311  not for secrets
    ways = {name: found for name in sorted(calm) if (found := _ways(calm[name], acts))}
    decks: dict[str, list[tuple[Moment, Act]]] = {name: [] for name in ways}
    done = dict.fromkeys(ways, 0)
    each = -(-sum(map(len, ways.values())) // runs)
    planned: list[list[Strike]] = []
    for _ in range(runs):
        turns = sorted(ways, key=lambda name: (done[name] / len(ways[name]), chance.random()))
        strikes = []
        for name in turns[:each]:
            decks[name] = decks[name] or chance.sample(ways[name], len(ways[name]))
            moment, act = decks[name].pop()
            strikes.append(_strike(chance, calm[name], name, moment, act))
            done[name] += 1
        planned.append(strikes)
    return planned


def _ways(calm: Calm, acts: Collection[Act]) -> list[tuple[Moment, Act]]:
    """The possible strikes of a node."""
    return [
        (moment, act)
        for moment, possible in ACTS.items()
        if _has(calm, moment)
        for act in possible
        if act in acts
    ]


def _has(calm: Calm, moment: Moment) -> bool:
    """Whether a handler has such a moment."""
    if moment is Moment.BEFORE_EFFECT:
        return calm.calls > 0
    return moment is not Moment.AFTER_EFFECT or calm.effects > 0


def _strike(chance: random.Random, calm: Calm, node: str, moment: Moment, act: Act) -> Strike:
    count = {Moment.BEFORE_EFFECT: calm.calls, Moment.AFTER_EFFECT: calm.effects}.get(moment, 0)
    effect = chance.randint(1, count) if count else 0
    after = calm.seconds * chance.uniform(0.1, 0.9) if moment is Moment.MIDWAY else 0.0
    return Strike(node, moment, act, effect, round(after, 4))


SERVER_SECONDS: Final = 0.15


class Striker:
    """The strikes of all runs.

    Args:
        folder: Shared by all processes; contains a file for each strike that has happened.
        strikes: The strikes of each flow, by its id.
        owner: The process of the worker.
    """

    def __init__(
        self, folder: Path, ledger: Ledger, strikes: Mapping[str, Sequence[Strike]], owner: int
    ) -> None:
        self._folder, self._ledger, self._strikes, self.owner = folder, ledger, strikes, owner

    def of(self, context: Context, moment: Moment, effect: int = 0) -> Strike | None:
        """The strike that is due, if any."""
        for strike in self._strikes.get(context.flow_id or "", ()):
            if (strike.node, strike.moment, strike.effect) == (context.node, moment, effect):
                return strike
        return None

    def strike(self, context: Context, moment: Moment, effect: int = 0, *, owner: int = 0) -> float:
        """Trigger the strike that is due, if any; returns how long to wait for it, in seconds.

        Does not return if the worker is killed.
        """
        found = self.of(context, moment, effect)
        return 0.0 if found is None else self.act(context, found, owner or self.owner)

    def act(self, context: Context, strike: Strike, owner: int) -> float:
        """Trigger a strike, unless it has happened; returns how long to wait for it, in seconds."""
        name = hashlib.sha256(f"{context.flow_id} {strike.node}".encode()).hexdigest()
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return 0.0
        pids = sorted({owner, os.getpid()})
        self._ledger.write(
            "strike", flow=context.flow_id, node=context.node, moment=strike.moment, act=strike.act, pids=pids
        )
        if strike.act in OF_SERVER:
            return SERVER_SECONDS
        number = signal.SIGKILL if strike.act is Act.KILL else signal.SIGSTOP
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if strike.act is Act.KILL:
            time.sleep(60)  # the end of the worker ends this process
        return 0.0


VARIABLE: Final = "GLIDEMQ_CHAOS"
"""The environment variable with the folder: handlers with ``process=True`` inherit it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the workers serve, and the strikes of each flow by its id.

    Attributes:
        allow_import: If empty, the packages of ``apps``.
        salt: The salt of the digests in the ledger, so that values cannot be guessed from them.
    """

    url: str
    queues: Sequence[str]
    apps: Sequence[str]
    allow_import: Sequence[str]
    effects: Sequence[str]
    concurrency: int
    lease_seconds: float
    salt: str
    strikes: Mapping[str, Sequence[Strike]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file atomically: readers see the old or the new file."""
        scratch = folder / "setup.tmp"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(folder / "setup.json")

    @classmethod
    def read(cls, folder: Path) -> Setup:
        """Read the file."""
        fields = json.loads((folder / "setup.json").read_text())
        strikes = {
            flow: [Strike.from_json(strike) for strike in each] for flow, each in fields["strikes"].items()
        }
        return cls(**{**fields, "strikes": strikes})


def ledger_of(folder: Path) -> Path:
    """The file of the ledger."""
    return folder / "ledger.jsonl"


def struck_of(folder: Path) -> Path:
    """The folder with a file for each strike that has happened."""
    return folder / "struck"
