-- gmo_due_schedules: hand out the schedulers that are due for a check, and note when to check others again.
-- KEYS  1 our schedulers
-- ARGS  1 now_ms  2 until_ms: hand out those due by then  3 max number (at most 100)
--       4 lease in ms: during it no other client gets the same ones; then for each checked one: member, the end of its
--       lease, when to check it again; ignored for one that has changed since
-- REPLY {when the next one is due, or -1, what to walk over: '' | all | index, member, text, last job, ...}
--       all: add entries that Node clients may have written to the index; index: also remove those that they may have
--       deleted. Only one caller at a time gets this.
-- EFFECTS missing entries are removed from the index
local MAX, MAX_BYTES, WALK, SLACK = 100, 262144, 2000, 200

-- Whether it is time to walk over all entries: every two seconds, or less often if they are many.
local function to_walk(prefix, due, now)
  local count = redis.call('HLEN', prefix .. 'schedulers') + redis.call('HLEN', prefix .. 'gmo:schedulers')
  local known, place = redis.call('ZCARD', due), prefix .. 'gmo:supervised'
  if count == 0 and known == 0 then
    return ''
  end
  local since = now - L.numbers.int(redis.call('HGET', place, 'schedules'), 0)
  if since >= 0 and since < WALK - SLACK + (count > known and 0 or count) then
    return ''
  end
  redis.call('HSET', place, 'schedules', L.numbers.text(now))
  return known > count and 'index' or 'all'
end

local function due_schedules(keys, args)
  local now, till, most, lease = tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
  if not (now and till and most and lease) or (#args - 4) % 3 ~= 0 then
    return redis.error_reply('GMO_INVALID times, a number and triples are expected')
  end
  local prefix, bytes = L.hashes.prefix(keys[1], 'gmo:schedulers'), 0
  local due = prefix .. 'gmo:schedulers:due'
  for at = 5, #args, 3 do
    if tonumber(redis.call('ZSCORE', due, args[at])) == tonumber(args[at + 1]) then
      L.scheduler.plan(prefix, args[at], args[at + 2])
    end
  end
  local reply = { -1, to_walk(prefix, due, now) }
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', till, 'LIMIT', 0, math.min(most, MAX))) do
    local key, name = L.scheduler.entry(prefix, member)
    local text = L.scheduler.stored(key, name)
    if bytes > MAX_BYTES then
      break
    elseif text == '' then
      L.scheduler.plan(prefix, member, nil)
    else
      L.scheduler.plan(prefix, member, L.numbers.text(now + lease))
      reply[#reply + 1], reply[#reply + 2] = member, text
      reply[#reply + 1] = L.scheduler.stored(prefix .. 'gmo:schedulers:last', name)
      bytes = bytes + #text
    end
  end
  reply[1] = L.scheduler.next(prefix)
  return reply
end

redis.register_function('gmo_due_schedules', due_schedules)
