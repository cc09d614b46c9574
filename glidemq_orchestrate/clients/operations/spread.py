"""Operations on a queue with shards: in the shard that has the job, or in all of them.

The members of such a queue are the queue itself and its shards. Each operation states how it works on them,
by one of the decorators here; for a queue without shards it runs as it stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from glidemq_orchestrate.clients.operations.combining import total
from glidemq_orchestrate.errors import GlideMQError, InvalidJob
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.jobs.job import job_exists
from glidemq_orchestrate.shards import KnownShards, Shards
from glidemq_orchestrate.wire.call import Op, ask_each, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="OnMembers")
Method = Callable[Concatenate[S, P], Op[T]]


class OnMembers:
    """Base of the operations on one queue: finds its members.

    Args:
        keys: The queue.
        clock: The clock.
        known: Returns what the client knows of shards.
    """

    def __init__(self, keys: QueueKeys, clock: Clock, known: Callable[[], KnownShards]) -> None:
        self._keys, self._clock, self._known = keys, clock, known
        self._is_member = False

    @property
    def known(self) -> KnownShards | None:
        """What the client knows of shards; None for a member."""
        return None if self._is_member else self._known()

    def become_member(self, keys: QueueKeys) -> None:
        """Be the operations on one member of the queue."""
        self._keys, self._is_member = keys, True

    @property
    def keys(self) -> QueueKeys:
        """The keys of the queue, or of the member."""
        return self._keys

    def _shards(self) -> Op[Shards | None]:
        """The shards of the queue; None for a queue without shards.

        Raises:
            ShardsMismatch: It never had the stated number.
        """
        known = self.known
        return None if known is None else (yield from known.of_one(self._keys, self._clock))

    def _members(self) -> Op[Sequence[Self]]:
        """The operations on each member, first on the queue itself; none for a queue without shards."""
        shards = yield from self._shards()
        return [] if shards is None else [self._on(keys) for keys in shards.members()]

    def forget(self) -> None:
        """Read the number of shards again with the next operation."""
        if self.known is not None:
            self.known.forget(self._keys)

    def _member_keys(self) -> Op[list[QueueKeys]]:
        """The members; only the queue itself for a queue without shards."""
        shards = yield from self._shards()
        return [self._keys] if shards is None else shards.members()

    def _on(self, keys: QueueKeys) -> Self:
        member = copy(self)
        member.become_member(keys)
        return member

    def holder(self, job_id: str) -> Op[Self]:
        """The member that has a job; the queue itself for a missing job."""
        return (yield from self._holders([job_id]))[0] or self._on(self._keys)

    def _holders(self, job_ids: Sequence[str]) -> Op[list[Self | None]]:
        """For each job the member that has it; None for a missing job.

        Raises:
            InvalidJob: Several members have a job with this id, as custom ids allow.
        """
        members = yield from self._members()
        if not members:
            return list[Self | None]([self]) * len(job_ids)
        calls = [job_exists(one.keys, job_id) for job_id in job_ids for one in members]
        exist = yield from ask_each(calls)
        found: list[Self | None] = []
        for at, job_id in enumerate(job_ids):
            hits = exist[at * len(members) : (at + 1) * len(members)]
            having = [one for one, hit in zip(members, hits, strict=True) if hit is True]
            if len(having) > 1:
                names = ", ".join(one.keys.queue for one in having)
                raise InvalidJob(
                    f"job id {shown(job_id)} is in several shards: {names}. Fix: use one of these as queue"
                )
            if not having and (failed := next((hit for hit in hits if isinstance(hit, GlideMQError)), None)):
                raise failed  # it may be there
            found.append(having[0] if having else None)
        return found


def with_job(make: Method[S, P, T]) -> Method[S, P, T]:
    """Run the operation in the member that has the job, the first argument."""
    return at_member(make, OnMembers.holder)


def at_member(make: Method[S, P, T], find: Callable[[S, str], Op[S]]) -> Method[S, P, T]:
    """Run the operation in the member that ``find`` finds by the first argument."""
    name = list(inspect.signature(make).parameters)[1]

    def there(self: S, plain: Op[T], args: Any, kwargs: Any) -> Op[T]:
        member = yield from find(self, args[0] if args else kwargs[name])
        if member is self:
            return (yield from plain)
        return (yield from make(member, *args, **kwargs))

    return _method(make, there)


def on_all(
    combine: Callable[[list[T]], T], *, fresh: bool = False
) -> Callable[[Method[S, P, T]], Method[S, P, T]]:
    """Run the operation in all members at once, and combine what they return.

    ``fresh``: read first how many there are now; for settings, which hold for shards added a moment ago too.
    """

    def decorate(make: Method[S, P, T]) -> Method[S, P, T]:
        def there(self: S, plain: Op[T], args: Any, kwargs: Any) -> Op[T]:
            if fresh:
                self.forget()
            members = yield from self._members()
            if not members:
                return (yield from plain)
            return combine((yield from side_by_side([make(one, *args, **kwargs) for one in members])))

        return _method(make, there)

    return decorate


def in_turn(limit: str) -> Callable[[Method[S, P, T]], Method[S, P, T]]:
    """Run the operation in one member after the other, until it has done as much as this argument allows.

    It returns a number, or a list.
    """

    def decorate(make: Method[S, P, T]) -> Method[S, P, T]:
        signature = inspect.signature(make)

        def there(self: S, plain: Op[T], args: Any, kwargs: Any) -> Op[T]:
            members = yield from self._members()
            if not members:
                return (yield from plain)
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            left, every = bound.arguments[limit], list[Any]()
            for one in members:
                bound.arguments["self"] = one
                if left is not None:
                    bound.arguments[limit] = left - sum(_size(one) for one in every)
                every.append((yield from make(*bound.args, **bound.kwargs)))
                if left is not None and sum(_size(one) for one in every) >= left:
                    break
            return total(every)  # type: ignore[no-any-return]

        return _method(make, there)

    return decorate


def in_pages(
    combine: Callable[[list[Any], Mapping[str, Any]], Any], *, whole: bool = False
) -> Callable[[Method[S, P, T]], Method[S, P, T]]:
    """Read the first page of all members, up to the end of the wanted one, and take that of their whole.

    Args:
        combine: Puts the pages of the members together, given the arguments of the call.
        whole: Read everything: the order of the whole is not that of the members.
    """

    def decorate(make: Method[S, P, T]) -> Method[S, P, T]:
        signature = inspect.signature(make)

        def there(self: S, plain: Op[T], args: Any, kwargs: Any) -> Op[T]:
            members = yield from self._members()
            if not members:
                return (yield from plain)
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            offset, limit = bound.arguments.get("offset", 0), bound.arguments["limit"]
            if min(offset, limit) < 0:
                return (yield from plain)  # it refuses them
            bound.arguments["limit"] = EVERYTHING if whole else offset + limit
            if offset:
                bound.arguments["offset"] = 0
            every: list[Op[T]] = []
            for one in members:
                bound.arguments["self"] = one
                every.append(make(*bound.args, **bound.kwargs))
            found: Any = combine((yield from side_by_side(every)), bound.arguments)
            del found[:offset], found[limit:]
            return found  # type: ignore[no-any-return]

        return _method(make, there)

    return decorate


EVERYTHING = 2**31


def _method(make: Method[S, P, T], there: Callable[[S, Op[T], Any, Any], Op[T]]) -> Method[S, P, T]:
    """The operation that ``there`` runs; the plain one is made first, so that it checks the arguments."""

    @wraps(make)
    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> Op[T]:
        plain = make(self, *args, **kwargs)
        return plain if self.known is None else there(self, plain, args, kwargs)

    return call  # type: ignore[return-value]  # the first parameter has no name in a Callable


def _size(result: Any) -> int:
    return result if isinstance(result, int) else len(result)
