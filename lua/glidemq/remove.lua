-- glidemq_removeJob: delete one job with everything that belongs to it.
-- KEYS  1 job hash  2 stream  3 scheduled  4 completed  5 failed  6 events  7 log
-- ARGS  1 jobId
-- REPLY 1, or 0 when there is no such job
-- EVENT removed

-- The search for a stream entry ends after 5000 entries: one removal must not hold up the server.
local MAX_ENTRIES = 5000
local GROUP = 'workers'

local function take_out_waiting(prefix, job_id, job)
  local list = job.lifo == '1' and 'lifo' or L.numbers.int(job.priority, 0) > 0 and 'priority'
  if not (list and redis.call('LREM', prefix .. list, 1, job_id) > 0) then
    L.stream.remove_job(prefix .. 'stream', GROUP, job_id, job.timestamp, MAX_ENTRIES)
  end
end

local function take_out(prefix, job_id, job)
  if job.state == 'waiting' then
    take_out_waiting(prefix, job_id, job)
  elseif job.state == 'group-waiting' and job.groupKey then
    redis.call('ZREM', prefix .. 'groupq:' .. job.groupKey, job_id)
  elseif job.state == 'active' and L.list_active.is_source(job) then
    L.list_active.release(prefix .. 'list-active')
  end
end

local function remove_job(keys, args)
  local job_id = args[1]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job then
    return 0
  end
  take_out(prefix, job_id, job)
  redis.call('ZREM', keys[3], job_id)
  redis.call('ZREM', keys[4], job_id)
  redis.call('ZREM', keys[5], job_id)
  redis.call('ZREM', prefix .. 'suspended', job_id)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.jobs.unlink(prefix, job_id)
  L.groups.leave(prefix, job, 0)
  L.events.emit(keys[6], 'removed', job_id)
  return 1
end

redis.register_function({
  function_name = 'glidemq_removeJob', callback = remove_job, flags = { 'allow-oom' },
})
