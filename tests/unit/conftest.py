"""A driver without a server: it feeds an operation with the replies of a script."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.wire.call import Batch, Call, Op, Request

NO_REPLY = object()


@dataclass
class Transcript:
    """What an operation returned and what it asked."""

    value: Any = None
    requests: list[Request] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The function or command of every call, in order."""
        return [_name(call) for request in self.requests for call in _calls(request)]


class Scripted(Protocol):
    """Runs an operation against a script; ``transcript`` keeps the requests also when it raises."""

    def __call__(
        self, op: Op[Any], replies: Iterable[Any], transcript: Transcript | None = None
    ) -> Transcript: ...


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
def make_transcript() -> type[Transcript]:
    return Transcript


@pytest.fixture
def scripted() -> Scripted:
    def run(op: Op[Any], replies: Iterable[Any], transcript: Transcript | None = None) -> Transcript:
        transcript = transcript or Transcript()
        script = iter(replies)
        try:
            request = next(op)
            while True:
                transcript.requests.append(request)
                reply = next(script, NO_REPLY)
                assert reply is not NO_REPLY, f"the script has no reply to {request}"
                reply = reply(request) if callable(reply) else reply
                request = op.throw(reply) if isinstance(reply, GlideMQError) else op.send(reply)
        except StopIteration as stop:
            transcript.value = stop.value
        assert next(script, NO_REPLY) is NO_REPLY, "the script has replies that were not asked for"
        return transcript

    return run
