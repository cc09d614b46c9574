-- glidemq_changePriority: change the priority of a job that does not run yet.
-- KEYS  1 job hash  2 stream  3 scheduled  4 events
-- ARGS  1 jobId  2 new priority  3 group
-- REPLY ok | no_op | error:invalid_priority | error:not_found | error:invalid_state
--       | error:not_in_stream | error:not_in_scheduled
-- EVENT priority-changed {priority}
-- COST  constant except for the search for a waiting job's entry, see `L.stream.remove_job`

local change = {}

function change.waiting(keys, args, job, priority)
  if priority == 0 then
    return 'no_op'
  end
  local prefix = L.hashes.prefix(keys[1], 'job:' .. args[1])
  if not L.jobs.remove_entry(prefix, keys[2], args[3], args[1], job) then
    return 'error:not_in_stream'
  end
  L.priorities.schedule(keys[3], args[1], priority, 0)
  redis.call('HSET', keys[1], 'state', 'prioritized', 'priority', L.numbers.text(priority))
  return 'ok'
end

function change.prioritized(keys, args, job, priority)
  if priority > 0 then
    L.priorities.schedule(keys[3], args[1], priority, 0)
    redis.call('HSET', keys[1], 'priority', L.numbers.text(priority))
    return 'ok'
  end
  redis.call('ZREM', keys[3], args[1])
  L.stream.append(keys[2], args[1], job.name)
  redis.call('HSET', keys[1], 'state', 'waiting', 'priority', '0')
  return 'ok'
end

function change.delayed(keys, args, _, priority)
  local score = tonumber(redis.call('ZSCORE', keys[3], args[1]))
  if not score then
    return 'error:not_in_scheduled'
  end
  L.priorities.schedule(keys[3], args[1], priority, L.numbers.time_of(score))
  redis.call('HSET', keys[1], 'priority', L.numbers.text(priority))
  return 'ok'
end

local function change_priority(keys, args)
  local priority = L.numbers.int(args[2], -1)
  if priority < 0 then
    return 'error:invalid_priority'
  end
  local job = L.jobs.read(L.hashes.prefix(keys[1], 'job:' .. args[1]), args[1])
  if not job then
    return 'error:not_found'
  end
  local action = change[job.state]
  local reply = action and action(keys, args, job, priority) or 'error:invalid_state'
  if reply == 'ok' then
    L.events.emit(keys[4], 'priority-changed', args[1], 'priority', L.numbers.text(priority))
  end
  return reply
end

redis.register_function({
  function_name = 'glidemq_changePriority', callback = change_priority, flags = { 'allow-oom' },
})
