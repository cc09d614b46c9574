"""Scripts that the server runs as one step.

All keys of a script share the hash tag of their queue. Scripts are sent with ``EVAL``: a server of ChasquiMQ
has no function library of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from glidemq_orchestrate.wire.call import Call, Word

T = TypeVar("T")

ADD: Final = """
-- KEYS 1 marker 2 stream; ARGV 1 seconds, then the words of XADD after the key. Returns the id of the entry.
local found = redis.call('GET', KEYS[1])
if found then return found end
local id = redis.call('XADD', KEYS[2], unpack(ARGV, 2))
redis.call('SET', KEYS[1], id, 'EX', ARGV[1])
return id
"""

ADD_DELAYED: Final = """
-- KEYS 1 dlid 2 delayed 3 didx; ARGV 1 seconds 2 run at 3 member. Returns 0 if the id was scheduled before.
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[1])
return 1
"""

CANCEL: Final = """
-- KEYS 1 delayed 2 didx 3 dlid. Returns 1 if the job will not run.
local member = redis.call('GET', KEYS[2])
if not member or redis.call('ZREM', KEYS[1], member) == 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
return 1
"""

REPLAY: Final = """
-- KEYS 1 dlq 2 stream; ARGV 1 longest stream, '' without limit, then id, envelope and name of each letter.
-- Returns how many moved.
local moved = 0
for at = 2, #ARGV, 3 do
  if redis.call('XDEL', KEYS[1], ARGV[at]) == 1 then
    local words = {}
    if ARGV[1] ~= '' then words = {'MAXLEN', '~', ARGV[1]} end
    for _, word in ipairs({'*', 'd', ARGV[at + 1]}) do words[#words + 1] = word end
    if ARGV[at + 2] ~= '' then
      words[#words + 1] = 'n'
      words[#words + 1] = ARGV[at + 2]
    end
    redis.call('XADD', KEYS[2], unpack(words))
    moved = moved + 1
  end
end
return moved
"""

UPSERT: Final = """
-- KEYS 1 repeat 2 spec; ARGV 1 next run 2 key of the schedule 3 specification. Keeps the count of runs.
redis.call('HSET', KEYS[2], 'spec', ARGV[3])
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
return 1
"""

REMOVE: Final = """
-- KEYS 1 repeat 2 spec; ARGV 1 key of the schedule. Returns 1 if there was one.
redis.call('DEL', KEYS[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
"""

ALL: Final = (ADD, ADD_DELAYED, CANCEL, REPLAY, UPSERT, REMOVE)


def script(
    text: str,
    keys: Sequence[str],
    args: Iterable[Word],
    decode: Callable[[Any], T],
    *,
    repeatable: bool = False,
) -> Call[T]:
    """The call of a script."""
    return Call(("EVAL", text, len(keys), *keys, *args), decode, repeatable=repeatable)
