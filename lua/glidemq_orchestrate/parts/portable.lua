-- Jobs of nodes of the portable path. Each call contains the round of the flow in which it was decided, and does not
-- change a job that a later round reruns (job field gmo:round): a slow caller is harmless.
L.portable = {}
local READY = { waiting = true, prioritized = true, ['group-waiting'] = true, delayed = true }

-- Whether the job belongs to a later round than `round`.
local function is_later(job_key, round)
  return (tonumber(redis.call('HGET', job_key, 'gmo:round') or 0) or 0) > round
end

-- Whether the job waits for a worker and none has started it in this round.
local function is_unstarted(job_key, job)
  return READY[job.state] and not L.due.has_begun(job_key)
end

-- Removes a job from every place where a worker could start it, and from a worker that runs it. `limit`: how many
-- entries of the stream to search.
function L.portable.withdraw(prefix, job_id, job, limit, now)
  L.remove.take_out(prefix, job_id, job, redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:entry') or nil, limit)
  redis.call('ZREM', prefix .. 'gmo:list-held', job_id)
  L.groups.leave(prefix, job, now)
end

L.portable.is_later = is_later
L.portable.is_unstarted = is_unstarted
