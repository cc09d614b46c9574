-- Schedulers. Both functions do nothing while somebody holds the lock with which glide-mq's workers guard reading,
-- firing and writing an entry: what is atomic here cannot come between. An entry that has changed since the caller
-- read it is left alone, so that of any number of callers one wins.

local MAX_JOBS = 100
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

-- gmo_put_scheduler: write or remove a scheduler that is as the caller saw it.
-- KEYS  1 lock  2 glide-mq's schedulers  3 our schedulers
-- ARGS  1 now_ms  2 name  3, 4 texts that the caller saw in 2 and 3 ('' = none)  5, 6 texts to write ('' = remove)
-- REPLY put | locked | changed
local function put_scheduler(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then
    return 'locked'
  end
  local name = args[2]
  if stored(keys[2], name) ~= args[3] or stored(keys[3], name) ~= args[4] then
    return 'changed'
  end
  write(keys[2], name, args[5])
  write(keys[3], name, args[6])
  if args[5] == '' and args[6] == '' then
    redis.call('HDEL', L.hashes.prefix(keys[1], LOCK) .. 'gmo:schedulers:last', name)
  end
  return 'put'
end

-- gmo_fire_scheduler: add the jobs of due slots and write the entry's next state.
-- KEYS  1 lock  2 the schedulers the entry is in
-- ARGS  1 now_ms  2 name  3 text that the caller saw  4 text to write ('' = remove the entry)  5 name of the jobs
--       6 opts  7 priority  8 attempts  9 ttl  10 lifo  11 scheduler name for the jobs ('' = none)  12... data of
--       each job (at most 100; none = only write)
-- REPLY fired and the ids, locked, or changed
-- ERROR GMO_INVALID
-- EVENT added {name} for each job
local function fire_scheduler(keys, args)
  local int, prefix = L.numbers.int, L.hashes.prefix(keys[1], LOCK)
  local now = int(args[1], nil)
  if not now or #args < 11 or #args - 11 > MAX_JOBS then
    return redis.error_reply('GMO_INVALID a time and at most ' .. MAX_JOBS .. ' jobs are expected')
  end
  if redis.call('EXISTS', keys[1]) == 1 then
    return { 'locked' }
  end
  local name = args[2]
  if args[3] == '' or stored(keys[2], name) ~= args[3] then
    return { 'changed' }
  end
  local reply, ttl = { 'fired' }, int(args[9], 0)
  for at = 12, #args do
    local job = {
      prefix = prefix, id = L.ids.auto(prefix), name = args[5], data = args[at], opts = args[6], timestamp = now,
      delay = 0, priority = int(args[7], 0), max_attempts = int(args[8], 0), scheduler_name = args[11],
      lifo = int(args[10], 0) > 0, expire_at = ttl > 0 and now + ttl or nil,
    }
    L.jobs.write(job)
    L.jobs.route(job)
    L.events.emit(prefix .. 'events', 'added', job.id, 'name', job.name)
    reply[#reply + 1] = job.id
  end
  write(keys[2], name, args[4])
  local last = prefix .. 'gmo:schedulers:last'
  if args[4] == '' then
    redis.call('HDEL', last, name)
  elseif #reply > 1 then
    redis.call('HSET', last, name, reply[#reply] .. ' ' .. L.numbers.text(now))
  end
  return reply
end

redis.register_function('gmo_put_scheduler', put_scheduler)
redis.register_function('gmo_fire_scheduler', fire_scheduler)
