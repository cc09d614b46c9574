-- hashes: whole hashes and zset scores as Lua values.

local M = {}
L.hashes = M

-- The reply of HGETALL as a table, with the flat reply beside it.
function M.load(key)
  local flat = redis.call('HGETALL', key)
  local fields = {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields, flat
end

-- Calls `act(first, last)` over 1..count in slices that `unpack` can take.
function M.slices(count, act)
  for first = 1, count, 1000 do
    act(first, math.min(first + 999, count))
  end
end

function M.zrem_all(key, members)
  M.slices(#members, function(first, last)
    redis.call('ZREM', key, unpack(members, first, last))
  end)
end

-- HINCRBY for fields of jobs and records. A value that is not a whole number counts as what can be read of it, so that
-- a broken job ends like any other. A key of another type still raises.
function M.add(key, field, by)
  local sum = redis.pcall('HINCRBY', key, field, by)
  if type(sum) == 'number' then
    return sum
  end
  local stored = L.numbers.int(redis.call('HGET', key, field), 0)
  stored = math.abs(stored) < L.numbers.EXACT and math.floor(stored) or 0
  redis.call('HSET', key, field, L.numbers.fresh_text(stored + by))
  return stored + by
end

-- The queue prefix (with its colon): `key` without the known `suffix` at its end.
function M.prefix(key, suffix)
  return string.sub(key, 1, -#suffix - 1)
end
