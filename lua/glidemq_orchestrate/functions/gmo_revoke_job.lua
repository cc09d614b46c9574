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
    return L.lease.missing(keys[1], job_id)
  end
  local word, flow_id = L.revoking.job(prefix, job_id, job, now)
  return { word, flow_id }
end

redis.register_function { function_name = 'gmo_revoke_job', callback = revoke_job, flags = { 'allow-oom' } }
