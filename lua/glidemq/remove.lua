-- glidemq_removeJob: delete one job with all its data.
-- KEYS  1 job hash  2 stream  3 scheduled  4 completed  5 failed  6 events  7 log
-- ARGS  1 jobId
-- REPLY 1, or 0 when there is no such job
-- EVENT removed

-- The search for a stream entry ends after 5000 entries: one removal must not block the server.
local MAX_ENTRIES = 5000

local function remove_job(keys, args)
  local job_id = args[1]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job then
    return 0
  end
  L.remove.job(prefix, job_id, job, nil, MAX_ENTRIES, 0)
  L.events.emit(keys[6], 'removed', job_id)
  return 1
end

redis.register_function({
  function_name = 'glidemq_removeJob', callback = remove_job, flags = { 'allow-oom' },
})
