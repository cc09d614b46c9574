"""For whom a flow runs, and who may end it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from glidemq_orchestrate.flows.owner import MAX, Owner
from glidemq_orchestrate.foundation.durations import Duration

MAX_NAME: Final = 256
MAX_LEASE: Final = MAX
"""The longest time for which a lease may last."""
RENEWALS: Final = 3
"""How often an owner renews its lease in the time for which it lasts."""


class NotOwned(Exception):
    """A flow does not run for the task that would end it, or not for that task alone."""


def owner_of(name: str, lease: Duration | None, *, joins: bool = True) -> Owner:
    """The owner of this name.

    Args:
        name: Who.
        lease: How long its lease lasts; the flow is cancelled afterwards. None: the longest time, and the
            flow runs on.
        joins: As of ``Owner``.

    Raises:
        ConfigurationError: ``lease`` is not between 15 seconds and 7 days.
    """
    if lease is None:
        return Owner(name, MAX_LEASE, "keep", joins=joins)
    return Owner(name, lease, joins=joins)


def short_name(name: str) -> str:
    """A name that may be an owner's: itself, or the beginning of it with a digest where it is too long."""
    if len(name) <= MAX_NAME and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return "".join(mark for mark in name if mark.isprintable())[: MAX_NAME - 17] + f" {digest}"


def check_owned(
    flow_id: str, name: str, found: Collection[str], counts: Callable[[str], bool] = lambda _: True
) -> None:
    """Refuse to end what does not run for this owner, or for others too. An ended flow has no owners.

    Args:
        flow_id: The flow.
        name: Who would end it.
        found: Its owners.
        counts: Whether one of the others still wants it.

    Raises:
        NotOwned: That is so.
    """
    if name not in found:
        raise NotOwned(f"somebody else has begun flow {flow_id} or set it running again")
    if others := [one for one in found if one != name and counts(one)]:
        raise NotOwned(f"flow {flow_id} goes on for {', '.join(others)}")


def joining(owner: Owner, *, is_begun_here: bool) -> Owner:
    """The owner, as it owns the current generation: one that a person has begun stays that person's."""
    return owner if is_begun_here else replace(owner, joins=False)
