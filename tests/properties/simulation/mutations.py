"""Defects that are put in on purpose: the simulation must notice each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate._ops.flows.portable import advance
from glidemq_orchestrate._protocol.call import Op
from tests.properties.simulation.plan import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect.

    Attributes:
        name: What is wrong.
        path: The path of the flows on which it shows.
        replaced: Texts of our server library, and what stands there instead.
        patched: Functions of operations by module and name, and their replacements.
    """

    name: str
    path: Path
    replaced: tuple[tuple[str, str], ...] = ()
    patched: tuple[tuple[Any, str, Callable[..., Any]], ...] = field(default=())

    def change(self, source: str) -> str:
        """The source of our library with the defect.

        Raises:
            AssertionError: The library no longer has the text.
        """
        for old, new in self.replaced:
            assert source.count(old) == 1, f"{self.name}: the library has {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        return source

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Operations have the defect in this block."""
        before = [(module, name, getattr(module, name)) for module, name, _ in self.patched]
        try:
            for module, name, function in self.patched:
                setattr(module, name, function)
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)


def _release_nothing(*_: Any) -> Op[None]:
    """Does nothing where nodes should be released."""
    yield from ()


MUTATIONS: Final = (
    Mutation(
        "a stale outcome is accepted",
        "staged",
        (("if v[1] ~= 'active' or v[2] ~= o.token or v[3] ~= o.processed_on then", "if v[1] ~= 'active' then"),),
    ),
    Mutation(
        "a dependent is released with its first dependency",
        "staged",
        (
            (
                "and L.hashes.add(key, 'depsCompleted', 1) >= redis.call('SCARD', prefix .. 'deps:' .. job_id)",
                "and L.hashes.add(key, 'depsCompleted', 1) >= 1",
            ),
        ),
    ),
    Mutation(
        "the end of a job does not give back its place in a list",
        "staged",
        (("    L.list_active.release(x.prefix .. 'list-active')\n    redis.call('ZREM', x.prefix .. 'gmo:list-held'",
          "    redis.call('ZREM', x.prefix .. 'gmo:list-held'"),),
    ),
    Mutation(
        "the end of a node is counted each time it is reported",
        "staged",
        (("local removed = redis.call('SREM', key .. ':open', unpack(list.refs))\n    if removed > 0 then",
          "redis.call('SREM', key .. ':open', unpack(list.refs))\n    local removed = #list.refs + 1\n    if removed > 0 then"),),
    ),
    Mutation(
        "jobs are taken from workers that are alive",
        "staged",
        (("  return now - last < threshold\n", "  return now - last < threshold / 10\n"),),
    ),
    Mutation(
        "a retry runs completed nodes again",
        "staged",
        (("function L.settle.ended(flow, ref, outcome, reason, now)",
          "function L.settle.ended(flow, ref, outcome, reason, now)\n"
          "  redis.call('SADD', L.record.key(flow.home, flow.id) .. ':failed', ref)"),
         ("    if removed > 0 then\n      L.hashes.add(key, 'completed', removed)",
          "    if removed > 0 then\n      redis.call('SADD', key .. ':failed', unpack(list.refs))\n"
          "      L.hashes.add(key, 'completed', removed)")),
    ),
    Mutation("nobody opens the gates of a portable flow", "portable", patched=((advance, "_release", _release_nothing),)),
    Mutation(
        "a portable node is ended although a worker has ended it",
        "portable",
        (("if not job or not job.state or ENDED[job.state] or L.portable.is_later", "if not job or L.portable.is_later"),),
    ),
)  # fmt: skip
