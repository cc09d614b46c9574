"""Scripts that the server runs as one step.

All keys of a script share the hash tag of their queue. Scripts are sent with ``EVAL``: a server of ChasquiMQ
has no function library of ours. The one that a worker sends all the time is sent as its digest, ``EVALSHA``.
"""

from __future__ import annotations

import functools
import hashlib
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

ADD_MANY: Final = """
-- Adds jobs, each once; servers without IDMP have a marker for each. Returns how many there are. A call that
-- is repeated does nothing.
-- KEYS 1 stream 2 marker of the call, then the marker of each job if there are any
-- ARGV 1 producer 2 seconds that markers live 3 longest stream, '' without limit, then the id, envelope and
--   name of each job
local count = (#ARGV - 3) / 3
if redis.call('GET', KEYS[2]) then return count end
for number = 1, count do
  local job_id, envelope, name = unpack(ARGV, 3 * number + 1, 3 * number + 3)
  local marker, words = KEYS[number + 2], {}
  if not marker then words = {'IDMP', ARGV[1], job_id} end
  if ARGV[3] ~= '' then
    for _, word in ipairs({'MAXLEN', '~', ARGV[3]}) do words[#words + 1] = word end
  end
  for _, word in ipairs({'*', 'd', envelope}) do words[#words + 1] = word end
  if name ~= '' then
    words[#words + 1] = 'n'
    words[#words + 1] = name
  end
  if not marker then
    redis.call('XADD', KEYS[1], unpack(words))
  elseif not redis.call('GET', marker) then
    redis.call('SET', marker, redis.call('XADD', KEYS[1], unpack(words)), 'EX', ARGV[2])
  end
end
redis.call('SET', KEYS[2], '1', 'EX', ARGV[2])
return count
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

OPEN: Final = """#!lua flags=allow-oom
-- Creates a consumer group, which begins at the start of the stream, unless it exists.
-- KEYS 1 stream; ARGV 1 group
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
return 1
"""

END: Final = """#!lua flags=allow-oom
-- Writes events, then ends the runs whose entries this consumer still holds. Returns for each run 1, or 0 if
-- it does not hold the entry, or the text of the error because of which the run has not ended.
-- KEYS 1 stream 2 events, then what the action of each run writes
-- ARGV 1 group 2 consumer 3 number of events, the events, then the runs
--   an event: its number of words, its words
--   a run: entry, action, two arguments of the action, the number of words of a dead letter, its words, the
--   number of events, the events
-- Actions: settle; store (seconds, result); delay (run at, member); bury (most dead letters)
local at = 3
local function number()
  at = at + 1
  return tonumber(ARGV[at - 1])
end
local function words()
  local count = number()
  at = at + count
  return {unpack(ARGV, at - count, at - 1)}
end
local function tell(is_told)
  for _ = 1, number() do
    local event = words()
    if is_told then redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 100000, '*', unpack(event)) end
  end
end
tell(true)
local verdicts = {}
while at <= #ARGV do
  local entry, action, first, second = unpack(ARGV, at, at + 3)
  at = at + 4
  local letter, target, verdict = words(), KEYS[#verdicts + 3], 1
  local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)
  if held.err or not held[1] or held[1][2] ~= ARGV[2] then
    verdict = 0
  else
    local done = 1
    if action == 'store' then done = redis.pcall('SET', target, second, 'EX', first) end
    if action == 'delay' then done = redis.pcall('ZADD', target, first, second) end
    if action == 'bury' then done = redis.pcall('XADD', target, 'MAXLEN', '~', first, '*', unpack(letter)) end
    if type(done) == 'table' and done.err then
      verdict = done.err
    else
      redis.call('XACK', KEYS[1], ARGV[1], entry)
      redis.call('XDEL', KEYS[1], entry)
    end
  end
  verdicts[#verdicts + 1] = verdict
  tell(verdict == 1)
end
return verdicts
"""

CLAIM: Final = """#!lua flags=allow-oom
-- Renews entries that this consumer holds (idle time 0), or gives them back (a long one): the number of
-- deliveries remains. Returns the entries that it does not hold.
-- KEYS 1 stream; ARGV 1 group 2 consumer 3 idle time in ms, then the entries
local lost = {}
for at = 4, #ARGV do
  local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)
  if held.err or not held[1] or held[1][2] ~= ARGV[2] then
    lost[#lost + 1] = ARGV[at]
  else
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'IDLE', ARGV[3], 'JUSTID')
  end
end
return lost
"""

LEAVE: Final = """#!lua flags=allow-oom
-- Removes a consumer from its group if it holds nothing, and the locks that it holds.
-- KEYS 1 stream 2 promoter lock 3 scheduler lock; ARGV 1 group 2 consumer
local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if not held.err and not held[1] then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
for at = 2, 3 do
  if redis.call('GET', KEYS[at]) == ARGV[2] then redis.call('DEL', KEYS[at]) end
end
return 1
"""

PROMOTE: Final = """#!lua flags=allow-oom
-- Moves delayed jobs that are due to the stream; returns their envelopes, or nil if another holds the lock.
-- A member without a whole name becomes a dead letter.
-- KEYS 1 lock 2 delayed 3 stream 4 dlq; ARGV 1 holder 2 seconds 3 most jobs 4 longest stream
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local moved = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local size = #member >= 4 and struct.unpack('<I4', member) or -1
  if size < 0 or #member < 4 + size then
    redis.call('XADD', KEYS[4], '*', 'd', member, 'source_id', '', 'reason', 'malformed',
      'detail', 'a delayed job without a whole name')
  else
    local envelope = string.sub(member, 5 + size)
    if size > 0 then
      local name = string.sub(member, 5, 4 + size)
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'd', envelope, 'n', name)
    else
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'd', envelope)
    end
    moved[#moved + 1] = envelope
  end
  redis.call('ZREM', KEYS[2], member)
end
return moved
"""

HOLD: Final = """
-- KEYS 1 lock; ARGV 1 holder 2 seconds. Returns 1 if this holder has the lock.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""

FIRE: Final = """#!lua flags=allow-oom
-- Adds the jobs of a schedule that are due, and sets its next run; returns how many were added. Does nothing
-- if the schedule has changed since it was read.
-- KEYS 1 stream 2 repeat 3 spec
-- ARGV 1 run as read 2 next run, 0 for none 3 key of the schedule 4 longest stream 5 limit, 0 for none,
--   then the envelope and the name of each job
if redis.call('ZSCORE', KEYS[2], ARGV[3]) ~= ARGV[1] then return 0 end
local limit, fired = tonumber(ARGV[5]), tonumber(redis.call('HGET', KEYS[3], 'fired') or 0) or 0
local added = 0
for at = 6, #ARGV, 2 do
  if limit > 0 and fired >= limit then break end
  if ARGV[at + 1] == '' then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'd', ARGV[at])
  else
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'd', ARGV[at], 'n', ARGV[at + 1])
  end
  fired, added = redis.call('HINCRBY', KEYS[3], 'fired', 1), added + 1
end
if (limit > 0 and fired >= limit) or ARGV[2] == '0' then
  redis.call('ZREM', KEYS[2], ARGV[3])
  redis.call('DEL', KEYS[3])
else
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
end
return added
"""

PRESENT: Final = """
-- KEYS 1 stream; ARGV entries. Returns 1 for each entry that is there, else 0.
local found = {}
for at, id in ipairs(ARGV) do found[at] = #redis.call('XRANGE', KEYS[1], id, id) end
return found
"""

WITHDRAW: Final = """
-- KEYS 1 stream; ARGV 1 group 2 entry. Removes an entry that no worker has fetched; returns 1 if it did.
local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if not held.err and held[1] then return 0 end
return redis.call('XDEL', KEYS[1], ARGV[2])
"""

ALL: Final = (
    ADD, ADD_MANY, ADD_DELAYED, CANCEL, REPLAY, UPSERT, REMOVE, OPEN, END, CLAIM, LEAVE, PROMOTE, HOLD, FIRE,
    PRESENT, WITHDRAW,
)  # fmt: skip


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


def known_script(text: str, keys: Sequence[str], args: Iterable[Word], decode: Callable[[Any], T]) -> Call[T]:
    """The call of a script that the server probably knows; it fails with ``NOSCRIPT`` if it does not."""
    return Call(("EVALSHA", _digest(text), len(keys), *keys, *args), decode)


@functools.cache
def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
