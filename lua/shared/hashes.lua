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

-- The queue prefix (with its colon): `key` without the known `suffix` at its end.
function M.prefix(key, suffix)
  return string.sub(key, 1, -#suffix - 1)
end
