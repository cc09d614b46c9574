-- Schedulers. Both functions do nothing while somebody holds the lock with which glide-mq's workers guard reading,
-- firing and writing an entry: what is atomic here cannot come between. An entry that has changed since the caller
-- read it is left alone, so that of any number of callers one wins.
L.scheduler = {}

local LOCK = 'schedulers:lock:__tick__'

-- Text of an entry, '' for none.
local function stored(key, name)
  return redis.call('HGET', key, name) or ''
end
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
