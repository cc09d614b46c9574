-- gmo_retry_message: retry a message in one subscription in which it has failed.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 subscription  4 name  5 data  6 id for a copy, which is created if the message was
--       removed
-- REPLY the id of the message: its own, or that of the copy, which only this subscription gets; '' when the message has
--       not failed in this subscription, and nothing was changed
-- EFFECTS its attempts start over. A repeat finds the existing copy.
local function copy(b, args)
  local job_id = args[6]
  if L.ids.allocate(b.prefix, job_id) then
    L.jobs.write { prefix = b.prefix, id = job_id, name = args[4], data = args[5], opts = '{}', timestamp = b.now, delay = 0,
      priority = 0, max_attempts = 0, state = 'delayed' }
    redis.call('HSET', b.prefix .. 'job:' .. job_id, 'gmo:message', '0-0', 'gmo:sub:' .. args[3], 'delayed')
    redis.call('ZADD', b.prefix .. 'scheduled', b.now, job_id .. '||' .. args[3])
  end
  return job_id
end

local function retry_message(keys, args)
  local prefix = L.hashes.prefix(keys[1], 'job:' .. args[2])
  local b = { prefix = prefix, stream = prefix .. 'stream', now = tonumber(args[1]) }
  if redis.call('HEXISTS', keys[1], 'state') == 0 then
    return copy(b, args)
  end
  return L.messages.retry(b, args[2], args[3]) and args[2] or ''
end

redis.register_function('gmo_retry_message', retry_message)
