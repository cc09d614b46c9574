-- remove: removing one job from a queue.

local M = {}
L.remove = M

local GROUP = 'workers'

local function take_out_waiting(prefix, job_id, job, entry_id, limit)
  if entry_id then
    L.stream.ack(prefix .. 'stream', GROUP, entry_id, false)
    return true
  end
  local list = job.lifo == '1' and 'lifo' or L.numbers.int(job.priority, 0) > 0 and 'priority'
  -- From the right, where the next jobs are: a list is drained from there.
  if list and redis.call('LREM', prefix .. list, -1, job_id) > 0 then
    return true
  end
  return limit >= 0 and L.stream.remove_job(prefix .. 'stream', GROUP, job_id, job.timestamp, limit)
end

-- Removes a job from every place that could start it. `entry_id`: its stream entry, if known. `limit`: how many entries
-- to search, beyond those near its expected position; -1: none at all.
-- False when the entry of a waiting job was not found.
function M.take_out(prefix, job_id, job, entry_id, limit)
  local is_found = true
  if job.state == 'waiting' then
    is_found = take_out_waiting(prefix, job_id, job, entry_id, limit)
  elseif job.state == 'group-waiting' and job.groupKey then
    redis.call('ZREM', prefix .. 'groupq:' .. job.groupKey, job_id)
  elseif job.state == 'active' then
    L.stream.ack(prefix .. 'stream', GROUP, entry_id, false)
    if L.list_active.is_source(job) then
      L.list_active.release(prefix .. 'list-active')
    end
  end
  L.priorities.unschedule(prefix, job_id)
  redis.call('ZREM', prefix .. 'suspended', job_id)
  return is_found
end

-- Deletes a job with all its data; notifies nobody.
function M.job(prefix, job_id, job, entry_id, limit, now)
  local is_found = M.take_out(prefix, job_id, job, entry_id, limit)
  redis.call('ZREM', prefix .. 'completed', job_id)
  redis.call('ZREM', prefix .. 'failed', job_id)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.jobs.unlink(prefix, job_id)
  L.groups.leave(prefix, job, now)
  return is_found
end
