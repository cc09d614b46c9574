-- revoking: ends a job that is not running, and flags a running one.
L.revoking = {}

-- Returns the word of gmo_revoke_job, and the id of the flow that needs gmo_advance_flow, else ''. `entry_id`: its stream
-- entry, if known. `limit`: how far to search for it, see remove.lua.
function L.revoking.job(prefix, job_id, job, now, entry_id, limit)
  local key = prefix .. 'job:' .. job_id
  if job.state == 'completed' or job.state == 'failed' then
    return job.state, ''
  end
  redis.call('HSET', key, 'revoked', '1')
  local word = L.messages.revoke({ prefix = prefix, stream = prefix .. 'stream', now = now }, job_id)
  if word or job.state == 'active' then
    L.events.emit(prefix .. 'events', 'revoked', job_id)
    return word or 'flagged', ''
  end
  entry_id = entry_id or redis.call('HGET', key, 'gmo:entry') or nil
  local is_clean = L.remove.take_out(prefix, job_id, job, entry_id, limit or 0)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.jobs.set_failed(prefix, job_id, 'revoked', now)
  L.groups.leave(prefix, job, now)
  L.events.emit(prefix .. 'events', 'revoked', job_id)
  local flow_id = L.settle.job_failed(prefix, job_id, 'revoked', now)
  L.keeping.of_failed(prefix, job_id, now)
  return is_clean and 'revoked' or 'left', flow_id
end
