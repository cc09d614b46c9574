-- glidemq_revoke: cancel a job that does not run yet, flag every other.
-- KEYS  1 job hash  2 stream  3 scheduled  4 failed  5 events
-- ARGS  1 jobId  2 now  3 group
-- REPLY revoked (it has failed) | flagged (only the flag was set) | not_found
-- EVENT revoked
-- COST  constant except for the search for a waiting job's entry, see `L.stream.remove_job`: the entry must be removed,
--       and the wire has no record of its position. Entries of scheduled jobs are searched near their time only.

local READY = { waiting = true, delayed = true, prioritized = true }

local function revoke(keys, args)
  local job_id, now = args[1], L.numbers.int(args[2], 0)
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job then
    return 'not_found'
  end
  redis.call('HSET', keys[1], 'revoked', '1')
  local is_parked = job.state == 'group-waiting'
  if is_parked and job.groupKey then
    redis.call('ZREM', prefix .. 'groupq:' .. job.groupKey, job_id)
  elseif READY[job.state] then
    local was_scheduled = redis.call('ZREM', keys[3], job_id) == 1
    L.jobs.remove_entry(prefix, keys[2], args[3], job_id, job, was_scheduled and 0 or nil)
    L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  end
  if is_parked or READY[job.state] then
    L.jobs.set_failed(prefix, job_id, 'revoked', now)
    L.groups.leave(prefix, job, now)
  end
  L.events.emit(keys[5], 'revoked', job_id)
  return (is_parked or READY[job.state]) and 'revoked' or 'flagged'
end

redis.register_function({ function_name = 'glidemq_revoke', callback = revoke, flags = { 'allow-oom' } })
