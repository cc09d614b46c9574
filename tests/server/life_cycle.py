"""Holds what calls do to jobs against the table of ``jobs/states.py``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.jobs.states import ABSENT, JobState, leads_to
from glidemq_orchestrate.wire.call import Batch, Request

if TYPE_CHECKING:
    from tests.server.conftest import Hand

STATES = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*:job:*')) do
  if redis.call('TYPE', key).ok == 'hash' then
    found[#found + 1] = key
    found[#found + 1] = redis.call('HGET', key, 'state') or ''
  end
end
return found
"""
KNOWN = {ABSENT, *JobState}


@cache
def reached(calls: frozenset[str], source: str) -> frozenset[str]:
    """Where any of these calls, in any order, may take a job."""
    found = {source}
    for _ in calls:
        found |= {target for state in found for call in calls for target in leads_to(call, state)}
    return frozenset(found)


class LifeCycle:
    """Looks at all jobs of a server before and after calls, such as those of the tests of our functions."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @contextmanager
    def watching(self, calls: Collection[str]) -> Iterator[None]:
        """The calls in this block do nothing to a job that the table does not have."""
        before = self._states()
        try:
            yield
        finally:  # also when the server refused: what did it change?
            after = self._states()
        for key in {*before, *after}:
            source, target = before.get(key, ABSENT), after.get(key, ABSENT)
            if source != target and {source, target} <= KNOWN:
                taken = f"{', '.join(sorted(calls))} took {key} from {source} to {target}"
                assert target in reached(frozenset(calls), source), f"{taken}: the table does not have it"

    def _states(self) -> dict[str, str]:
        found = [x.decode() if isinstance(x, bytes) else x for x in self._client.eval(STATES, 0)]
        return dict(zip(found[::2], found[1::2], strict=True))


def functions(request: Request) -> set[str]:
    """The server functions that a request calls."""
    calls = request.calls if isinstance(request, Batch) else (request,)
    return {str(call.words[1]) for call in calls if call.words[0] == "FCALL"}


def hold_to_life_cycle(hand: Hand, client: Any) -> None:
    """Look before and after each request that a hand sends from now on."""
    life_cycle, answer = LifeCycle(client), hand.driver._reply_to

    def watched(request: Request, *given: Any) -> Any:
        if not (calls := functions(request)):
            return answer(request, *given)
        with life_cycle.watching(calls):
            return answer(request, *given)

    hand.driver._reply_to = watched  # type: ignore[method-assign,assignment]
