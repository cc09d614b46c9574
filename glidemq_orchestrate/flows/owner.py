"""Calls about who owns flows; ``parts/owners.lua`` says how that is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.foundation.names import OWNER, described
from glidemq_orchestrate.jobs.bounds import lasting, milliseconds
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

OnLapse = Literal["cancel", "keep"]
MIN: Final = timedelta(seconds=15)
MAX: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody for whom a flow runs: a process, a task, a session.

    A flow is wanted while one of its owners lives. An owner lives while it renews its lease: ``wait``,
    ``watch`` and ``result`` do so for the owner with which the flow was submitted or found, ``Flow.renew``
    does it explicitly. The lease is one for all flows of an owner with the same home queue. Whoever begins a
    generation without an owner leaves it without one: the owners of the one before own it only when they
    ask for it again.

    Attributes:
        name: Who, 1 to 256 characters: different for each that may vanish by itself.
        lapse: How long after it was last heard of an owner is taken for gone, 15 seconds to 7 days. Time in
            which the server itself is away ends no lease: half the lapse is always left for coming back.
        on_lapse: What then happens to a flow that nobody else owns: ``cancel`` it, or ``keep`` it running.
            Of several owners, the one that vanishes last decides.
        joins: Whether it also owns what others have begun, or set running again after its end. False: it owns
            only what it begins by ``submit``, ``retry_failed``, ``restart`` or a change of nodes; in all else
            ``wait``, ``watch`` and ``renew`` change nothing.

    Raises:
        ConfigurationError: One of them is not valid.
    """

    name: str
    lapse: timedelta = timedelta(minutes=5)
    on_lapse: OnLapse = "cancel"
    joins: bool = True

    def __post_init__(self) -> None:
        OWNER.check(self.name)
        lasting("lapse", self.lapse, least=MIN, most=MAX, error=ConfigurationError)
        if self.on_lapse not in get_args(OnLapse):
            raise ConfigurationError(f"on_lapse must be cancel or keep, got {described(self.on_lapse)}")
        if not isinstance(self.joins, bool):
            raise ConfigurationError(f"joins must be True or False, got {described(self.joins)}")

    @property
    def lapse_ms(self) -> int:
        """The same in milliseconds."""
        return milliseconds(self.lapse)


def words(owner: Owner) -> tuple[Word, ...]:
    """An owner as server functions take it."""
    return (owner.name, owner.lapse_ms, owner.on_lapse)


def lease(name: str, lapse_ms: int) -> str:
    """The name of a lease."""
    return f"{lapse_ms}:{name}"


def own(home: QueueKeys, flow_id: str, owner: Owner, now_ms: int) -> Call[FlowState]:
    """Add an owner to a flow, or renew it; returns the state of the flow. Repeatable.

    One that does not join is renewed if it owns the flow already.
    """
    args = (now_ms, flow_id, *words(owner), int(owner.joins))
    return function("gmo_own_flow", [home.flow(flow_id)], args, FlowState, repeatable=True)


def note(home: QueueKeys, flow_id: str, text: str) -> Call[int]:
    """Keep a text with a generation of a flow; the last one counts. Repeatable."""
    args = (0, flow_id, text)
    return function("gmo_note_flow", [home.flow(flow_id)], args, replies.integer, repeatable=True)


def owners(home: QueueKeys, flow_id: str) -> Call[list[str]]:
    """The names of the owners of a flow, sorted."""
    return command("HKEYS", f"{home.flow(flow_id)}:owners", decode=lambda names: sorted(filter(None, names)))


def renew(home: QueueKeys, owner: Owner, now_ms: int) -> Call[bool]:
    """Note that an owner lives, for all its flows; False if it has no lease there. Repeatable."""
    member = lease(owner.name, owner.lapse_ms)
    return command("ZADD", _leases(home), "XX", "CH", now_ms, member, decode=bool, repeatable=True)


def begin(home: QueueKeys, owner: Owner, now_ms: int) -> Call[None]:
    """Begin the lease of an owner, or renew it: for flows that no server function looks after. Repeatable."""
    member = lease(owner.name, owner.lapse_ms)
    return command("ZADD", _leases(home), "GT", now_ms, member, decode=replies.anything, repeatable=True)


def heard(home: QueueKeys, name: str) -> Call[int | None]:
    """When the owner of a lease was last heard of; None if there is no such lease."""
    return command("ZSCORE", _leases(home), name, decode=lambda reply: number(reply) if reply else None)


def silent(home: QueueKeys, before_ms: int, most: int) -> Call[list[str]]:
    """Leases of owners that were last heard of before a time."""
    limit = ("LIMIT", 0, most)
    return command("ZRANGEBYSCORE", _leases(home), "-inf", f"({before_ms}", *limit, decode=list)


def forget(home: QueueKeys, leases: Sequence[str]) -> Call[None]:
    """Forget leases."""
    return command("ZREM", _leases(home), *leases, decode=replies.anything)


def _leases(home: QueueKeys) -> str:
    return home.key("gmo:owners")
