-- expiry: jobs that outlived their time to live.

local M = {}
L.expiry = M

-- True when the job is past its `expireAt`; then it has failed with reason `expired`, now or before.
-- `job` is what `L.jobs.read` returns (nil reads it). `group` is the loaded group hash of a caller that
-- promotes parked jobs itself. Second result: true when this call failed it.
function M.check(prefix, job_id, now, job, group)
  job = job or L.jobs.read(prefix, job_id)
  local expire_at = job and L.numbers.int(job.expireAt, 0) or 0
  if expire_at <= 0 or now <= expire_at then
    return false
  end
  if job.state == 'failed' then
    return true, false
  end
  L.jobs.set_failed(prefix, job_id, 'expired', now)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.groups.leave(prefix, job, now, group)
  L.events.emit(prefix .. 'events', 'expired', job_id)
  L.metrics.record(prefix .. 'metrics:failed', now, L.metrics.duration(job, now))
  return true, true
end
