"""A driver that talks to nobody: it feeds an operation with the replies of a script."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from glidemq_orchestrate._protocol.call import Batch, Call, Op, Request
from glidemq_orchestrate.errors import GlideMQError

UNTOLD = object()


@dataclass
class Told:
    """What an operation answered and what it asked."""

    value: Any = None
    requests: list[Request] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The function or command of every call, in order."""
        return [_name(call) for request in self.requests for call in _calls(request)]


class Scripted(Protocol):
    """Runs an operation against a script; ``told`` keeps the requests also when it raises."""

    def __call__(self, op: Op[Any], replies: Iterable[Any], told: Told | None = None) -> Told: ...


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()


def _calls(request: Request) -> tuple[Call[Any], ...]:
    return request.calls if isinstance(request, Batch) else (request,)


def _name(call: Call[Any]) -> str:
    return str(call.words[1] if call.words[0] == "FCALL" else call.words[0])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_told() -> type[Told]:
    return Told


@pytest.fixture
def scripted() -> Scripted:
    def run(op: Op[Any], replies: Iterable[Any], told: Told | None = None) -> Told:
        told = told or Told()
        script = iter(replies)
        try:
            request = next(op)
            while True:
                told.requests.append(request)
                reply = next(script, UNTOLD)
                assert reply is not UNTOLD, f"the script has no reply to {request}"
                reply = reply(request) if callable(reply) else reply
                request = op.throw(reply) if isinstance(reply, GlideMQError) else op.send(reply)
        except StopIteration as stop:
            told.value = stop.value
        assert next(script, UNTOLD) is UNTOLD, "the script has replies nobody asked for"
        return told

    return run
