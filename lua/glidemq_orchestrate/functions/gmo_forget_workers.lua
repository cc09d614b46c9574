-- gmo_forget_workers: remove the registrations and consumers of killed workers of ours.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 silent_ms: a worker is dead after this long without a call
-- REPLY integer: removed consumers
-- EFFECTS at most 100 members of <prefix>gmo:workers are removed, and as many consumers without entries. A worker that
--   was only slow is registered again by its next call. A consumer with entries stays until they are reclaimed. The
--   consumer of an unregistered Node worker is removed after FOREIGN times as long.
local MAX, OURS, FOREIGN = 100, '^gmo%-', 1440

-- The consumers of a group; none without a group.
local function consumers(stream, group)
  local found = redis.pcall('XINFO', 'CONSUMERS', stream, group)
  local list = {}
  for i, fields in ipairs(found.err and {} or found) do
    list[i] = {}
    for at = 1, #fields, 2 do
      list[i][fields[at]] = fields[at + 1]
    end
  end
  return list
end

-- Whether a consumer without entries belongs to a killed worker.
local function is_dead(prefix, listed, consumer, now, silent)
  if not consumer.name:find(OURS) then
    return consumer.idle >= FOREIGN * silent and redis.call('EXISTS', prefix .. 'w:' .. consumer.name) == 0
  end
  return consumer.idle >= silent and (tonumber(redis.call('ZSCORE', listed, consumer.name)) or 0) < now - silent
end

local function forget_workers(keys, args)
  local prefix, now, silent, count = L.hashes.prefix(keys[1], 'stream'), tonumber(args[1]), tonumber(args[3]), 0
  local listed = prefix .. 'gmo:workers'
  for _, consumer in ipairs(consumers(keys[1], args[2])) do
    if count < MAX and consumer.pending == 0 and is_dead(prefix, listed, consumer, now, silent) then
      redis.call('XGROUP', 'DELCONSUMER', keys[1], args[2], consumer.name)
      count = count + 1
    end
  end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', listed, '-inf', now - silent, 'LIMIT', 0, MAX)) do
    redis.call('ZREM', listed, name)
  end
  return count
end

redis.register_function { function_name = 'gmo_forget_workers', callback = forget_workers, flags = { 'allow-oom' } }
