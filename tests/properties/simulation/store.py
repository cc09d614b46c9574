"""The real server, with time and dice that belong to the scheduler.

Every function takes the time as an argument, so little is left: keys with a time to live, how long an entry
of a stream was pending, and random members of sets. Keys are given an endless life and are removed when the
simulated time has come; entries are aged with XCLAIM before a call that asks for their age; and in the loaded
copy of our library random members are drawn from a generator that is seeded with each history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import redis
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.io.delivery import ESCAPES, pack
from glidemq_orchestrate.io.translate import refused
from glidemq_orchestrate.wire.call import Batch, Call, Op, Word
from glidemq_orchestrate.wire.keys import GROUP

ENDLESS_MS: Final = 10**10
AGED_MS: Final = 10**9
_DICE: Final = """
local SIM = { state = 1 }
function SIM.draw(n)
  SIM.state = (SIM.state * 16807) % 2147483647
  return SIM.state % n + 1
end
local LIST = { SPOP = 'SMEMBERS', SRANDMEMBER = 'SMEMBERS', HRANDFIELD = 'HKEYS' }
function SIM.pick(command, key, count, values)
  local found, drawn = redis.call(LIST[command], key), {}
  table.sort(found)
  for _ = 1, math.min(count or 1, #found) do
    local one = table.remove(found, SIM.draw(#found))
    drawn[#drawn + 1] = one
    if command == 'SPOP' then
      redis.call('SREM', key, one)
    elseif values then
      drawn[#drawn + 1] = redis.call('HGET', key, one)
    end
  end
  if count then
    return drawn
  end
  return drawn[1] or false
end
redis.register_function('gmo_sim_seed', function(_, args)
  SIM.state = tonumber(args[1])
  return 'OK'
end)
"""
_RANDOM: Final = re.compile(r"redis\.call\('(SPOP|SRANDMEMBER|HRANDFIELD)'")
_CLAIM: Final = "r.prefix .. 'stream', r.group, 'IDLE', r.min_idle, '-', '+'"

Observer = Callable[[Call[Any], Any], None]


def simulated(source: str) -> str:
    """Our library with dice that can be seeded, and entries that are idle only when the scheduler says so."""
    start = "local L = {}\n"
    assert source.count(start) == 1
    assert source.count(_CLAIM) == 1
    source = _RANDOM.sub(r"SIM.pick('\1'", source).replace(_CLAIM, _CLAIM.replace("r.min_idle", str(AGED_MS)))
    return source.replace(start, _DICE + start)


class Store:
    """One connection to one server, and what the scheduler knows of its keys.

    Args:
        socket: The path of the server's socket.
        mutate: Changes the source of our library, to check that the simulation notices.
    """

    def __init__(self, socket: Path, mutate: Callable[[str], str] = lambda source: source) -> None:
        self.client: Any = redis.Redis(unix_socket_path=str(socket), decode_responses=True)
        kind: Any = UnixDomainSocketConnection
        self._connection = kind(path=str(socket), decode_responses=True, encoding_errors=ESCAPES, protocol=2)
        for name in (
            ("appendonly", "no"),
            ("hash-max-listpack-value", 100_000),
            ("set-max-listpack-value", 1_000),
        ):
            self.client.config_set(*name)
        self.client.function_load(library(GLIDEMQ).source, replace=True)
        self.client.function_load(simulated(mutate(library(ORCHESTRATE).source)), replace=True)
        self.reset(1)

    def reset(
        self, seed: int, observer: Observer | None = None, before: Callable[[Call[Any]], None] | None = None
    ) -> None:
        """Empty the server and seed its dice. Observers see each call: before it, and with its reply."""
        self.client.flushdb()
        self.client.fcall("gmo_sim_seed", 0, seed)
        self.observer, self.before = observer, before
        self._until: dict[str, int] = {}
        self._since: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Close the connections."""
        self._connection.disconnect()
        self.client.close()

    def run(self, op: Op[Any], now_ms: int) -> Any:
        """Run an operation to its end at one moment."""
        try:
            request = next(op)
            while True:
                if isinstance(request, Batch):
                    request = op.send([self.answer(call, now_ms) for call in request.calls])
                    continue
                reply = self.answer(request, now_ms)
                request = op.throw(reply) if isinstance(reply, GlideMQError) else op.send(reply)
        except StopIteration as stop:
            return stop.value

    def answer(self, call: Call[Any], now: int) -> Any:
        """The reply of the server at this time; an error reply as the error that the driver makes of it."""
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
            self._send(("UNLINK", key))
        name = str(call.words[1]) if call.words[0] == "FCALL" else ""
        if name == "gmo_reclaim":
            self._age(call.words, now)
        if self.before is not None:
            self.before(call)
        reply = self._send(self._endless(call.words))
        if not isinstance(reply, Exception):
            self._note_life(call.words, reply, now)
            self._note_entries(name, call.words, reply, now)
            if self.observer is not None:
                self.observer(call, reply)
        return reply

    def ends_by_itself(self, key: str) -> bool:
        """Whether a key has a time to live."""
        return key in self._until

    def _send(self, words: tuple[Word, ...]) -> Any:
        try:
            self._connection.send_packed_command([pack(words)])
            return self._connection.read_response()
        except ResponseError as exc:
            return refused(exc)

    @staticmethod
    def _endless(words: tuple[Word, ...]) -> tuple[Word, ...]:
        """The command with a time to live that never ends by itself."""
        if words[0] == "SET" and "PX" in words:
            at = words.index("PX") + 1
        elif words[0] == "PEXPIRE":
            at = 2
        elif words[0] == "FCALL" and words[1] in ("glidemq_tryLock", "glidemq_renewLock"):
            at = 5
        else:
            return words
        return (*words[:at], ENDLESS_MS, *words[at + 1 :])

    def _note_life(self, words: tuple[Word, ...], reply: Any, now: int) -> None:
        """Note until when a key lives."""
        if words[0] == "FCALL" and words[1] == "gmo_begin_generation":
            for one in [key for key in self._until if ":gmo:flow:" in key or ":gmo:generations:" in key]:
                del self._until[one]
        elif words[0] in ("UNLINK", "PERSIST"):
            for key in words[1:]:
                self._until.pop(str(key), None)
        elif words[0] == "FCALL" and words[1] == "glidemq_unlock" and reply:
            self._until.pop(str(words[3]), None)
        elif words[0] == "FCALL" and words[1] == "gmo_sweep" and int(reply[2]):
            home = str(words[3]).removesuffix("flows")
            records = [*self.client.keys(f"{home}flow:{reply[1]}{{*}}"), f"{home}flow:{reply[1]}"]
            for one in (*records, f"{home}generations:{reply[1]}"):  # of all generations
                self._until[one] = now + int(reply[2])
        elif self._endless(words) is not words and reply:
            key = str(words[3] if words[0] == "FCALL" else words[1])
            ms = words[words.index("PX") + 1] if words[0] == "SET" else words[5 if words[0] == "FCALL" else 2]
            self._until[key] = now + int(ms)

    def _note_entries(self, name: str, words: tuple[Word, ...], reply: Any, now: int) -> None:
        """Note when entries were delivered."""
        if name == "gmo_finish_and_fetch" and words[9] != "again":
            self._since |= {(str(words[3]), row[1]): now for row in reply[2] if row[1]}

    def _age(self, words: tuple[Word, ...], now: int) -> None:
        """Make the entries idle that a call may look at by their age."""
        stream, min_idle = str(words[3]), int(words[7])
        pending = self._send(("XPENDING", stream, GROUP, "-", "+", 1000))
        for entry_id, consumer, _, _ in pending if isinstance(pending, list) else []:
            since = self._since.setdefault((stream, entry_id), now)
            if now - since >= min_idle:
                self._send(("XCLAIM", stream, GROUP, consumer, 0, entry_id, "IDLE", 2 * AGED_MS, "JUSTID"))


@contextmanager
def opened(mutate: Callable[[str], str] = lambda source: source) -> Iterator[Store]:
    """A server of its own on a socket, which ends with the block."""
    with TemporaryDirectory() as directory:
        socket = Path(directory) / "s"
        with EmbeddedServer(unix_socket=socket) as _:
            store = Store(socket, mutate)
            try:
                yield store
            finally:
                store.close()
