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

L.scheduler.LOCK = LOCK
L.scheduler.stored = stored
L.scheduler.write = write
