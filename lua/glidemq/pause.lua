-- glidemq_pause, glidemq_resume: set or clear the paused flag of the queue. Clients honour it, functions do not.
-- KEYS  1 meta  2 events
-- REPLY 1
-- EVENT paused | resumed, with job id 0, on every call

local function set(keys, value, event)
  redis.call('HSET', keys[1], 'paused', value)
  L.events.emit(keys[2], event, '0')
  return 1
end

local function pause(keys)
  return set(keys, '1', 'paused')
end

local function resume(keys)
  return set(keys, '0', 'resumed')
end

redis.register_function({ function_name = 'glidemq_pause', callback = pause, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'glidemq_resume', callback = resume, flags = { 'allow-oom' } })
