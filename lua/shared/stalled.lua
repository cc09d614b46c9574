-- stalled: jobs whose worker no longer renews them.

local M = {}
L.stalled = M

local REASON = 'job stalled more than maxStalledCount'

-- Counts a stall. Returns `failed` when it was one too many, else `stalled`.
function M.stall(prefix, job_id, job, max_stalled, now, failed_key, events_key)
  events_key = events_key or prefix .. 'events'
  if L.hashes.add(prefix .. 'job:' .. job_id, 'stalledCount', 1) <= max_stalled then
    L.events.emit(events_key, 'stalled', job_id)
    return 'stalled'
  end
  redis.call('ZADD', failed_key or prefix .. 'failed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'failed', 'failedReason', REASON,
    'finishedOn', L.numbers.text(now))
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.groups.leave(prefix, job, now)
  L.events.emit(events_key, 'failed', job_id, 'failedReason', REASON)
  L.metrics.record(prefix .. 'metrics:failed', now, L.metrics.duration(job, now))
  return 'failed'
end

-- True while the last heartbeat of the job is recent enough.
-- The job's own lock duration takes precedence, then the worker's, then `min_idle`.
function M.is_alive(prefix, job_id, job, now, lock_duration, min_idle)
  local last = L.numbers.int(job.lastActive, nil)
  if not last then
    return false
  end
  local own = L.options.lock_duration(redis.call('HGET', prefix .. 'job:' .. job_id, 'opts'))
  local threshold = own or (lock_duration > 0 and lock_duration) or min_idle
  return now - last < threshold
end
