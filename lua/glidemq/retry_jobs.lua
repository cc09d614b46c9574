-- glidemq_retryJobs: run failed jobs again.
-- KEYS  1 failed  2 scheduled  3 events  4 id counter
-- ARGS  1 count (0 = all)  2 now
-- REPLY integer: jobs retried
-- ERROR invalid timestamp
-- EVENT retried, with the count as job id

local BATCH = 1000

local function retry_jobs(keys, args)
  local wanted, now = L.numbers.int(args[1], 0), L.numbers.int(args[2], nil)
  if not now then
    return redis.error_reply('ERR glidemq_retryJobs: invalid timestamp')
  end
  local prefix, count = L.hashes.prefix(keys[4], 'id'), 0
  while wanted <= 0 or count < wanted do
    local size = wanted > 0 and math.min(BATCH, wanted - count) or BATCH
    local ids = redis.call('ZRANGE', keys[1], 0, size - 1)
    if #ids == 0 then
      break
    end
    L.hashes.zrem_all(keys[1], ids)
    for _, job_id in ipairs(ids) do
      local job = L.jobs.read(prefix, job_id)
      if job then
        L.priorities.schedule(keys[2], job_id, L.numbers.int(job.priority, 0), now)
        L.start_over.reset(prefix, job_id, job, now, 'delayed')
        count = count + 1
      end
    end
  end
  if count > 0 then
    L.events.emit(keys[3], 'retried', L.numbers.text(count))
  end
  return count
end

redis.register_function({
  function_name = 'glidemq_retryJobs', callback = retry_jobs, flags = { 'allow-oom' },
})
