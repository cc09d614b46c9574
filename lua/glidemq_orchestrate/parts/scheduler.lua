-- Schedulers. gmo_put_scheduler and gmo_fire_scheduler do nothing while a glide-mq worker holds the lock under which it
-- reads, fires and writes an entry. An entry that has changed since the caller read it is left alone, so that one of
-- any number of callers wins.
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

local YEAR, MOST_FINISHED, PRUNED = 366 * 86400000, 10000, 10

-- Writes the text of an entry that has finished; '' removes it. Entries stay for a year after they were last written, the
-- newest 10000. <finished>:at: when each was.
function L.scheduler.write_finished(key, name, text, now)
  write(key, name, text)
  if text == '' then
    redis.call('ZREM', key .. ':at', name)
    return
  end
  redis.call('ZADD', key .. ':at', now, name)
  local old = redis.call('ZRANGEBYSCORE', key .. ':at', '-inf', now - YEAR, 'LIMIT', 0, PRUNED)
  if #old == 0 and redis.call('HLEN', key) > MOST_FINISHED then
    old = redis.call('ZRANGE', key .. ':at', 0, PRUNED - 1)
  end
  for _, gone in ipairs(old) do
    redis.call('HDEL', key, gone)
    redis.call('ZREM', key .. ':at', gone)
  end
end

-- Lets workers look at the schedules at once: each fetch returns the number of changes, which is in glide-mq's `meta`.
function L.scheduler.changed(prefix)
  redis.pcall('HINCRBY', prefix .. 'meta', 'gmo:schedules', 1)
end

-- The job of a schedule whose next run depends on its end (gmo:repeats) may have ended.
function L.scheduler.settled(prefix, job, kind, verdict)
  if job.repeats and (verdict == 'failed' or (verdict == 'ok' and (kind == 'done' or kind == 'skip'))) then
    L.scheduler.changed(prefix)
  end
end

L.scheduler.LOCK = LOCK
L.scheduler.stored = stored
L.scheduler.write = write
