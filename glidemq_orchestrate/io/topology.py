"""Routes calls: to the one server, the primary behind sentinels, or the primaries of a cluster. Pure.

``deliver`` is a generator. It yields lists of ``Parcel``. For each parcel it receives its replies (an error
in place of a refused call), or the error that prevented all of them. The drivers send the parcels. Here a
call is sent again only after the server refused it (MOVED, ASK), never when its outcome is unknown:
``delivery`` decides that.

Primaries and slots are looked up on first use. They are looked up again after a broken connection, a reply
such as READONLY, or a moved slot. This also happens while a server does not reply: its machine may be down,
and another one may have taken over. Threads may share a topology: its state is replaced, not modified.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    GlideMQError,
    NotConfirmed,
    OutcomeUnknown,
    ProtocolError,
    ServerBusy,
    TransportError,
)
from glidemq_orchestrate.io.slots import SLOTS, SlotMap, target, undivided
from glidemq_orchestrate.io.translate import Redirected
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.replies import error_from

Received: TypeAlias = "Replies | GlideMQError"
DOUBT_SECONDS: Final = 2.0
"""After this long without a reply, other servers are asked whether this one has been replaced."""
REPLACED: Final = "another server has taken over"
_STALE: Final = frozenset({"READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS", "LOADING"})


@dataclass(frozen=True, slots=True)
class Parcel:
    """Calls for one server, in order."""

    place: Endpoint
    calls: tuple[Call[Any], ...]
    sentinel: bool = False


Replies: TypeAlias = list[Any]
Delivery: TypeAlias = Generator[list[Parcel], list[Received], Replies]
Lookup: TypeAlias = Generator[list[Parcel], list[Received], tuple[Endpoint, ...]]
Check: TypeAlias = Generator[list[Parcel], list[Received], bool]

ASKING: Final = command("ASKING", decode=str)


class Topology(Protocol):
    """Decides where a call goes."""

    def deliver(self, calls: tuple[Call[Any], ...]) -> Delivery:
        """The replies to the calls, in order. Raises the error that prevented all of them."""

    def primaries(self) -> Lookup:
        """Every server that owns a part of the data."""

    def can_check_replacement(self, parcel: Parcel) -> bool:
        """Whether other servers can report that the silent server of a parcel has been replaced."""

    def is_replaced(self, place: Endpoint) -> Check:
        """Whether another server has taken over from this one. Raises the error that prevents an answer."""


def topology_of(settings: ConnectionSettings) -> Topology:
    """The topology for the kind of URL."""
    if settings.kind == "cluster":
        return Cluster(settings)
    if settings.kind == "sentinel":
        return Sentinel(settings)
    return Single(settings.places[0])


class Single:
    """One server."""

    def __init__(self, place: Endpoint) -> None:
        self._place = place

    def deliver(self, calls: tuple[Call[Any], ...]) -> Delivery:
        """See ``Topology``."""
        (received,) = yield [Parcel(self._place, calls)]
        if isinstance(received, GlideMQError):
            raise received
        return received

    def primaries(self) -> Lookup:
        """See ``Topology``."""
        yield from ()
        return (self._place,)

    def can_check_replacement(self, parcel: Parcel) -> bool:  # noqa: ARG002  there is no other server
        """See ``Topology``."""
        return False

    def is_replaced(self, place: Endpoint) -> Check:  # noqa: ARG002  as above
        """See ``Topology``."""
        yield from ()
        return False


class Sentinel:
    """The primary of a service, as reported by its sentinels."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._sentinels = settings.places
        self._primary: Endpoint | None = None

    def deliver(self, calls: tuple[Call[Any], ...]) -> Delivery:
        """See ``Topology``."""
        place = self._primary or (yield from self._look_up())
        (received,) = yield [Parcel(place, calls)]
        if isinstance(received, ConnectionFailed):
            self._forget()
            now = yield from self._look_up()
            if now != place:  # nothing was sent
                (received,) = yield [Parcel(now, calls)]
        if isinstance(received, GlideMQError):
            if isinstance(received, TransportError):
                self._forget()
            raise received
        if any(is_stale(reply) for reply in received):
            self._forget()
        return received

    def _forget(self) -> None:
        """Forget the primary; the sentinel that named it is asked last, as it may be partitioned."""
        self._primary = None
        first, *others = self._sentinels
        self._sentinels = (*others, first)

    def primaries(self) -> Lookup:
        """See ``Topology``."""
        return (self._primary or (yield from self._look_up()),)

    def can_check_replacement(self, parcel: Parcel) -> bool:
        """See ``Topology``."""
        return not parcel.sentinel

    def is_replaced(self, place: Endpoint) -> Check:
        """See ``Topology``."""
        return (yield from self._look_up()) != place

    def _look_up(self) -> Generator[list[Parcel], list[Received], Endpoint]:
        """Ask each sentinel in turn for the primary; the one that replies is asked first next time."""
        name = self._settings.service
        ask = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name, decode=list)
        failed: GlideMQError | None = None
        for sentinel in self._sentinels:
            (received,) = yield [Parcel(sentinel, (ask,), sentinel=True)]
            found = received if isinstance(received, GlideMQError) else received[0]
            if isinstance(found, GlideMQError):
                failed = _more_specific(failed, found)
            elif found:
                others = (other for other in self._sentinels if other != sentinel)
                self._sentinels = (sentinel, *others)
                self._primary = Endpoint(found[0], int(found[1]))
                return self._primary
            else:
                unknown = f"the sentinels of {self._settings.where} do not know the service {name!r}"
                failed = _more_specific(failed, ConfigurationError(unknown))
        raise _nothing_sent(failed)


class Cluster:
    """The primaries of a cluster, each with its slots."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._map: SlotMap | None = None
        self._known: tuple[Endpoint, ...] = ()

    def primaries(self) -> Lookup:
        """See ``Topology``."""
        return (self._map or (yield from self._look_up())).primaries

    def can_check_replacement(self, parcel: Parcel) -> bool:
        """See ``Topology``."""
        return parcel.calls[0].words[0] != "CLUSTER"  # a look-up already asks several servers

    def is_replaced(self, place: Endpoint) -> Check:
        """See ``Topology``."""
        self._forget(place)
        return place not in (yield from self._look_up()).primaries

    def deliver(self, calls: tuple[Call[Any], ...]) -> Delivery:
        """See ``Topology``. In a batch, an error takes the place of a missing reply."""
        slots = self._map or (yield from self._look_up())
        orders = [self._order(call, slots) for call in calls]
        parts = [part for order in orders for part in order.parts]
        replies = yield from self._exchange(parts)
        if any(isinstance(reply, ConnectionFailed) for reply in replies):
            yield from self._try_elsewhere(parts, replies)
        at, merged = 0, []
        for order in orders:
            end = at + len(order.parts)
            merged.append(order.merge(replies[at:end]))
            at = end
        lost = [reply for reply in merged if isinstance(reply, ConnectionFailed | OutcomeUnknown)]
        if lost and len(lost) == len(merged):  # some were not sent, but not all
            raise next((one for one in lost if isinstance(one, OutcomeUnknown)), lost[0])
        return merged

    def _try_elsewhere(self, parts: Sequence[CallPart], replies: Replies) -> Delivery:
        """Send unsent calls to the current owners of their slots; updates the replies."""
        slots = self._map or (yield from self._look_up())
        again = {}
        for number, part in enumerate(parts):
            where = target(part.call.words)
            if isinstance(replies[number], ConnectionFailed) and isinstance(where, int):
                owner = slots.owner(where)
                if owner != part.place:
                    again[number] = CallPart(owner, part.call)
        later = (yield from self._exchange(list(again.values()))) if again else []
        for number, reply in zip(again, later, strict=True):
            replies[number] = reply
        return replies

    def _exchange(self, parts: Sequence[CallPart]) -> Delivery:
        """Send the parts; send those whose slot has moved once more."""
        replies = yield from self._send(parts)
        moved = [i for i, reply in enumerate(replies) if isinstance(reply, Redirected)]
        if moved:
            # Refused, so not executed: only these are sent again.
            if not all(replies[i].ask for i in moved):
                self._map = None
            again = [_redirected(parts[i], replies[i]) for i in moved]
            for i, reply in zip(moved, (yield from self._send(again)), strict=True):
                is_moving = isinstance(reply, Redirected)
                replies[i] = (
                    error_from("TRYAGAIN the cluster is moving the slot of the key") if is_moving else reply
                )
        for part, reply in zip(parts, replies, strict=True):
            if is_stale(reply) and part.place is not None:
                self._forget(part.place)
        return replies

    def _forget(self, place: Endpoint) -> None:
        """Forget the map; this server is asked last, as it may be partitioned."""
        self._map = None
        self._known = (*(known for known in self._known if known != place), place)

    def _send(self, parts: Sequence[CallPart]) -> Delivery:
        """Send one parcel per server. A call without a server or without a reply gets an error."""
        numbers: dict[Endpoint, list[int]] = {}
        for number, part in enumerate(parts):
            if part.place is not None:
                numbers.setdefault(part.place, []).append(number)
        parcels = []
        for place, numbers_there in numbers.items():
            pairs = [(ASKING, parts[n].call) if parts[n].ask else (parts[n].call,) for n in numbers_there]
            parcels.append(Parcel(place, tuple(call for pair in pairs for call in pair)))
        replies: Replies = [error_from("CLUSTERDOWN no primary serves the slot of the key")] * len(parts)
        all_received = (yield parcels) if parcels else []
        for parcel, numbers_there, received in zip(parcels, numbers.values(), all_received, strict=True):
            each: Replies
            if isinstance(received, GlideMQError):
                self._forget(parcel.place)
                each = [received] * len(numbers_there)
            else:
                both = zip(parcel.calls, received, strict=True)
                each = [reply for call, reply in both if call is not ASKING]
            for number, reply in zip(numbers_there, each, strict=True):
                replies[number] = reply
        return replies

    def _order(self, call: Call[Any], slots: SlotMap) -> Order:
        """The servers that get a call, and the way to merge their replies."""
        where = target(call.words)
        if where == "scan":
            return _scan(call, slots.primaries)
        if where == "all":
            return Order([CallPart(place, call) for place in slots.primaries], partial(_strictest, call))
        place = slots.primaries[0] if where == "any" else slots.owner(where)
        return Order([CallPart(place, undivided(call))], lambda replies: replies[0])

    def _look_up(self) -> Generator[list[Parcel], list[Received], SlotMap]:
        """Ask each known server in turn for the map of slots."""
        ask = command("CLUSTER", "SLOTS", decode=list)
        failed: GlideMQError | None = None
        for place in dict.fromkeys((*self._known, *self._settings.places)):
            (received,) = yield [Parcel(place, (ask,))]
            found = received if isinstance(received, GlideMQError) else received[0]
            if isinstance(found, ProtocolError) and "cluster support disabled" in str(found):
                raise ConfigurationError(
                    f"{self._settings.where} is not a cluster: use valkey:// without +cluster"
                )
            if isinstance(found, GlideMQError):
                failed = _more_specific(failed, found)
                continue
            slots = SlotMap.read(found, place)
            if slots.covered:
                self._map, self._known = slots, slots.primaries
                return slots
            failed = failed or error_from(f"CLUSTERDOWN none of the {SLOTS} slots is served")
        self._known = ()
        raise _nothing_sent(failed)


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call for one server; None while no primary serves its slot. ``ask``: the slot is being migrated."""

    place: Endpoint | None
    call: Call[Any]
    ask: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The parts of one call, and the way to merge their replies into one."""

    parts: list[CallPart]
    merge: Callable[[Replies], Any]


def is_stale(reply: object) -> bool:
    """Whether a refusal means that the server may no longer be the primary."""
    return isinstance(reply, ServerBusy | NotConfirmed) and reply.code in _STALE


def _redirected(part: CallPart, moved: Redirected) -> CallPart:
    host = moved.place.host or (part.place.host if part.place else "")
    return CallPart(Endpoint(host, moved.place.port), part.call, ask=moved.ask)


def _strictest(call: Call[Any], replies: Replies) -> Any:
    """The first refusal, else the reply to use."""
    refused = [reply for reply in replies if isinstance(reply, GlideMQError)]
    return refused[0] if refused else call.of_several(replies)


def _scan(call: Call[Any], primaries: Sequence[Endpoint]) -> Order:
    """Scan the primaries in turn; a cursor is that of a primary followed by ``@`` and its number."""
    cursor, _, number = str(call.words[1]).partition("@")
    index = min(int(number or 0), len(primaries) - 1)

    def merge(replies: Replies) -> Any:
        (reply,) = replies
        if isinstance(reply, GlideMQError):
            return reply
        following, keys = str(reply[0]), reply[1]
        if following != "0":
            return [f"{following}@{index}", keys]
        return [f"0@{index + 1}" if index + 1 < len(primaries) else "0", keys]

    words = (call.words[0], cursor, *call.words[2:])
    return Order([CallPart(primaries[index], replace(call, words=words))], merge)


def _more_specific(one: GlideMQError | None, other: GlideMQError) -> GlideMQError:
    """The error of two look-ups to report: a refusal is more specific than an unreachable server."""
    return other if one is None or isinstance(other, ConfigurationError) else one


def _nothing_sent(exc: GlideMQError | None) -> GlideMQError:
    """The error of a failed look-up, before anything of the caller's was sent."""
    if isinstance(exc, OutcomeUnknown):
        return ConnectionFailed(str(exc))
    return exc or ConnectionFailed("no server to ask")
