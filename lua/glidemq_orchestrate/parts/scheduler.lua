-- Schedulers. gmo_put_scheduler and gmo_fire_scheduler do nothing while a glide-mq worker holds the lock under which it
-- reads, fires and writes an entry. An entry that has changed since the caller read it is not touched, so that only one
-- of several callers wins.
--   <prefix>gmo:schedulers:due  zset: when to check an entry, ms; members are `+<name>` for our schedulers, `-<name>`
--                               for those of glide-mq. A hint: the entry itself decides what is due. Entries of Node
--                               clients are missing until a walk over all entries adds them, see gmo_due_schedules.
L.scheduler = {}

local LOCK = 'schedulers:lock:__tick__'

-- Text of an entry, '' for none.
local function stored(key, name)
  return redis.call('HGET', key, name) or ''
end

-- Writes the text of an entry; '' removes it.
local function write(key, name, text)
  if text == '' then
    redis.call('HDEL', key, name)
  else
    redis.call('HSET', key, name, text)
  end
end

-- The index member of an entry of one of the two hashes, and the reverse.
function L.scheduler.member(key, name)
  return (key:sub(-15) == ':gmo:schedulers' and '+' or '-') .. name
end

function L.scheduler.entry(prefix, member)
  return prefix .. (member:sub(1, 1) == '+' and 'gmo:schedulers' or 'schedulers'), member:sub(2)
end

-- When to check the first entry, ms; -1 for never.
function L.scheduler.next(prefix)
  return math.floor(tonumber(redis.pcall('ZRANGE', prefix .. 'gmo:schedulers:due', 0, 0, 'WITHSCORES')[2]) or -1)
end

-- Sets when to check an entry; nil if it was removed.
function L.scheduler.plan(prefix, member, at)
  if at then
    redis.pcall('ZADD', prefix .. 'gmo:schedulers:due', at, member)
  else
    redis.pcall('ZREM', prefix .. 'gmo:schedulers:due', member)
  end
end

local YEAR, MAX_FINISHED, PRUNED = 366 * 86400000, 10000, 10

-- Writes the text of a finished entry; '' removes it. The newest 10000 entries stay for a year after their last write.
-- <finished>:at: when each was written.
function L.scheduler.write_finished(key, name, text, now)
  write(key, name, text)
  if text == '' then
    redis.call('ZREM', key .. ':at', name)
    return
  end
  redis.call('ZADD', key .. ':at', now, name)
  local old = redis.call('ZRANGEBYSCORE', key .. ':at', '-inf', now - YEAR, 'LIMIT', 0, PRUNED)
  if #old == 0 and redis.call('HLEN', key) > MAX_FINISHED then
    old = redis.call('ZRANGE', key .. ':at', 0, PRUNED - 1)
  end
  for _, gone in ipairs(old) do
    redis.call('HDEL', key, gone)
    redis.call('ZREM', key .. ':at', gone)
  end
end

-- The job of a schedule whose next run depends on its end (gmo:repeats: the member of the entry) may have ended.
function L.scheduler.settled(prefix, job, kind, verdict, now)
  if job.repeats and (verdict == 'failed' or (verdict == 'ok' and (kind == 'done' or kind == 'skip'))) then
    redis.pcall('ZADD', prefix .. 'gmo:schedulers:due', 'XX', 'LT', now, job.repeats)
  end
end

L.scheduler.LOCK = LOCK
L.scheduler.stored = stored
L.scheduler.write = write
