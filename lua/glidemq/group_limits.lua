-- glidemq_rateLimitGroup: pause the group of an active job, from inside the job.
-- KEYS  1 job hash  2 stream
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 consumer group  4 duration ms  5 now  6 broadcast
--       7 currentJob: requeue, else fail  8 position: front, else back  9 extend: max, else replace
-- REPLY string: ms since the epoch at which the group continues | error:not_active | error:no_group
-- EVENT group-rate-limited {groupKey, duration, resumeAt}; failed {failedReason} of the job in fail mode
--
-- glidemq_rateLimitGroupExternal: pause a group from outside.
-- KEYS  1 ratelimited  2 events
-- ARGS  1 groupKey  2 duration ms  3 now  4 extend
-- REPLY integer: ms since the epoch at which the group continues
-- EVENT group-rate-limited {groupKey, duration, resumeAt}, without a job id
--
-- The time is stored on the group too, where the gates check it: the score alone would only schedule a wake-up.

local REASON = 'group rate limited'

-- Returns the time at which the group continues.
local function pause_group(prefix, group_key, duration, now, extend)
  local resume_at = now + duration
  if (extend or 'max') == 'max' then
    local score = redis.call('ZSCORE', prefix .. 'ratelimited', group_key)
    resume_at = math.max(resume_at, L.numbers.int(score, 0))
  end
  redis.call('ZADD', prefix .. 'ratelimited', resume_at, group_key)
  redis.call('HSET', prefix .. 'group:' .. group_key, 'limitedUntil', L.numbers.text(resume_at))
  return resume_at
end

local function announce(events_key, job_id, group_key, duration, resume_at)
  L.events.emit(events_key, 'group-rate-limited', job_id, 'groupKey', group_key,
    'duration', L.numbers.text(duration), 'resumeAt', L.numbers.text(resume_at))
end

local function give_back_slot(prefix, job)
  local key = prefix .. 'group:' .. job.groupKey
  if job.groupSlot ~= '0' and L.numbers.int(redis.call('HGET', key, 'active'), 0) > 0 then
    redis.call('HINCRBY', key, 'active', -1)
  end
end

local function requeue(prefix, job_id, job, position)
  local queue, seq = prefix .. 'groupq:' .. job.groupKey, L.numbers.int(job.orderingSeq, 0)
  local score = seq
  if position ~= 'front' then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    score = last and tonumber(last) + 1 or (seq > 0 and seq or L.numbers.int(job_id, 0))
  end
  redis.call('ZADD', queue, score, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'group-waiting')
  if seq > 0 then
    redis.call('HSET', prefix .. 'job:' .. job_id, 'groupSlot', '0')
  end
end

local function fail(prefix, job_id, job, now)
  L.jobs.set_failed(prefix, job_id, REASON, now, 'processedOn', job.processedOn or L.numbers.text(now))
  L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', REASON)
  L.metrics.record(prefix .. 'metrics:failed', now, L.metrics.duration(job, now))
end

local function rate_limit_group(keys, args)
  local job_id, entry_id = args[1], args[2] or ''
  local prefix, now = L.hashes.prefix(keys[1], 'job:' .. job_id), L.numbers.int(args[5], 0)
  local job, refusal = L.park.active_job(prefix, job_id)
  if refusal then
    return 'error:not_active'
  elseif (job.groupKey or '') == '' then
    return 'error:no_group'
  end
  L.stream.ack(keys[2], args[3], entry_id, L.numbers.flag(args[6]))
  L.park.release_list_slot(prefix, entry_id)
  give_back_slot(prefix, job)
  if (args[7] or 'requeue') == 'requeue' then
    requeue(prefix, job_id, job, args[8] or 'front')
  else
    fail(prefix, job_id, job, now)
  end
  local duration = L.numbers.int(args[4], 0)
  local resume_at = pause_group(prefix, job.groupKey, duration, now, args[9])
  announce(prefix .. 'events', job_id, job.groupKey, duration, resume_at)
  return L.numbers.text(resume_at)
end

local function rate_limit_group_external(keys, args)
  local duration, now = L.numbers.int(args[2], 0), L.numbers.int(args[3], 0)
  local resume_at = pause_group(L.hashes.prefix(keys[1], 'ratelimited'), args[1], duration, now, args[4])
  announce(keys[2], '', args[1], duration, resume_at)
  return resume_at
end

redis.register_function({
  function_name = 'glidemq_rateLimitGroup', callback = rate_limit_group, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_rateLimitGroupExternal', callback = rate_limit_group_external,
  flags = { 'allow-oom' },
})
