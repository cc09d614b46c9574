-- gmo_revoke_job: fail a job that is not running, flag a running one.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id
-- REPLY {word, id of the flow if it needs gmo_advance_flow, else ''}; the words: revoked; left = revoked, but its
--       stream entry was not in its expected position; flagged; completed or failed = it had ended, and nothing was
--       changed
-- ERROR GMO_JOB_NOT_FOUND
-- EFFECTS beyond glidemq_revoke: also fails a job that waits for other jobs or for a signal, and settles its node; a message
--       of a broadcast has failed in each subscription that has not begun it
-- EVENT revoked
local function revoke_job(keys, args)
  local now, job_id = tonumber(args[1]), args[2]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job or not job.state then
    return redis.error_reply('GMO_JOB_NOT_FOUND no job ' .. job_id)
  elseif job.state == 'completed' or job.state == 'failed' then
    return { job.state, '' }
  end
  redis.call('HSET', keys[1], 'revoked', '1')
  local word = L.messages.revoke({ prefix = prefix, stream = prefix .. 'stream', now = now }, job_id)
  if word then
    L.events.emit(prefix .. 'events', 'revoked', job_id)
    return { word, '' }
  end
  if job.state == 'active' then
    L.events.emit(prefix .. 'events', 'revoked', job_id)
    return { 'flagged', '' }
  end
  local entry_id = redis.call('HGET', keys[1], 'gmo:entry')
  local is_clean = L.remove.take_out(prefix, job_id, job, entry_id or nil, 0)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.jobs.set_failed(prefix, job_id, 'revoked', now)
  L.groups.leave(prefix, job, now)
  L.events.emit(prefix .. 'events', 'revoked', job_id)
  local flow_id = L.settle.job_failed(prefix, job_id, 'revoked', now)
  L.keeping.of_failed(prefix, job_id, now)
  return { is_clean and 'revoked' or 'left', flow_id }
end

redis.register_function { function_name = 'gmo_revoke_job', callback = revoke_job, flags = { 'allow-oom' } }
