-- glidemq_changeDelay: change the delay of a job that does not run yet.
-- KEYS  1 job hash  2 stream  3 scheduled  4 events
-- ARGS  1 jobId  2 new delay ms  3 now  4 group
-- REPLY ok | no_op | error:invalid_delay | error:not_found | error:invalid_state
--       | error:not_in_stream | error:not_in_scheduled
-- EVENT delay-changed {delay}
-- COST  constant except for the search for a waiting job's entry, see `L.stream.remove_job`
--
-- glidemq_promoteJob: make one delayed job ready now.
-- KEYS  1 job hash  2 stream  3 scheduled  4 events
-- ARGS  1 jobId
-- REPLY ok | error:not_found | error:not_delayed
-- EVENT promoted

local change = {}

local function schedule(keys, job_id, priority, now, delay)
  L.priorities.schedule(keys[3], job_id, priority, now + delay)
  redis.call('HSET', keys[1], 'state', 'delayed', 'delay', L.numbers.text(delay))
  return 'ok'
end

function change.delayed(keys, job_id, job, now, delay)
  local score = tonumber(redis.call('ZSCORE', keys[3], job_id))
  if not score then
    return 'error:not_in_scheduled'
  end
  local priority = L.numbers.class_of(score)
  if delay > 0 then
    return schedule(keys, job_id, priority, now, delay)
  elseif priority > 0 then
    L.priorities.schedule(keys[3], job_id, priority, 0)
    redis.call('HSET', keys[1], 'state', 'prioritized', 'delay', '0')
    return 'ok'
  end
  redis.call('ZREM', keys[3], job_id)
  L.stream.append(keys[2], job_id, job.name)
  redis.call('HSET', keys[1], 'state', 'waiting', 'delay', '0')
  return 'ok'
end

function change.waiting(keys, job_id, job, now, delay, group)
  if delay == 0 then
    return 'no_op'
  end
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  if not L.jobs.remove_entry(prefix, keys[2], group, job_id, job) then
    return 'error:not_in_stream'
  end
  return schedule(keys, job_id, L.numbers.int(job.priority, 0), now, delay)
end

function change.prioritized(keys, job_id, _, now, delay)
  if delay == 0 then
    return 'no_op'
  end
  local score = tonumber(redis.call('ZSCORE', keys[3], job_id))
  if not score then
    return 'error:not_in_scheduled'
  end
  return schedule(keys, job_id, L.numbers.class_of(score), now, delay)
end

local function change_delay(keys, args)
  local delay = L.numbers.int(args[2], -1)
  if delay < 0 then
    return 'error:invalid_delay'
  end
  local job = L.jobs.read(L.hashes.prefix(keys[1], 'job:' .. args[1]), args[1])
  if not job then
    return 'error:not_found'
  end
  local action, now = change[job.state], L.numbers.int(args[3], 0)
  local reply = action and action(keys, args[1], job, now, delay, args[4]) or 'error:invalid_state'
  if reply == 'ok' then
    L.events.emit(keys[4], 'delay-changed', args[1], 'delay', L.numbers.text(delay))
  end
  return reply
end

local function promote_job(keys, args)
  local prefix = L.hashes.prefix(keys[1], 'job:' .. args[1])
  local job = L.jobs.read(prefix, args[1])
  if not job then
    return 'error:not_found'
  elseif job.state ~= 'delayed' then
    return 'error:not_delayed'
  end
  redis.call('ZREM', keys[3], args[1])
  L.jobs.make_ready(prefix, args[1], job, L.numbers.int(job.priority, 0))
  redis.call('HSET', keys[1], 'state', 'waiting', 'delay', '0')
  L.events.emit(keys[4], 'promoted', args[1])
  return 'ok'
end

redis.register_function({
  function_name = 'glidemq_changeDelay', callback = change_delay, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_promoteJob', callback = promote_job, flags = { 'allow-oom' },
})
