-- glidemq_retryJobs: run failed jobs again.
-- KEYS  1 failed  2 scheduled  3 events  4 id counter
-- ARGS  1 count (0 = all)  2 now
-- REPLY integer: jobs retried
-- ERROR invalid timestamp
-- EVENT retried, with the count as job id

local BATCH = 1000

-- A failed job holds no slot. When its number is past, it will come back as returning: say that it must take
-- a slot. When it is not, the number arrives after all and is no longer to be skipped.
local function rejoin_group(prefix, key, job)
  local seq = L.numbers.int(job.orderingSeq, 0)
  if not job.groupKey or seq <= 0 then
    return
  end
  local hash_key = prefix .. 'group:' .. job.groupKey
  if seq < L.numbers.int(redis.call('HGET', hash_key, 'nextSeq'), 0) then
    redis.call('HSET', key, 'groupSlot', '0')
  else
    redis.call('HDEL', hash_key, 'skip:' .. L.numbers.text(seq))
  end
end

-- A job that was revoked in a list is still there, to be dropped when it is popped. It must not be found there
-- once it may run again.
local function take_out_of_lists(prefix, job_id, job)
  if job.revoked then
    redis.call('LREM', prefix .. 'lifo', 0, job_id)
    redis.call('LREM', prefix .. 'priority', 0, job_id)
  end
end

-- A new life: the time to live starts again, revocation and stalls are forgotten.
local function retry(prefix, job_id, job, now)
  local key, int = prefix .. 'job:' .. job_id, L.numbers.int
  redis.call('ZADD', prefix .. 'scheduled', L.numbers.score(int(job.priority, 0), now), job_id)
  redis.call('HSET', key, 'state', 'delayed', 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
  take_out_of_lists(prefix, job_id, job)
  redis.call('HDEL', key, 'revoked', 'stalledCount')
  local expire_at = int(job.expireAt, 0)
  if expire_at > 0 then
    redis.call('HSET', key, 'expireAt', L.numbers.text(now + expire_at - int(job.timestamp, expire_at)))
  end
  rejoin_group(prefix, key, job)
end

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
        retry(prefix, job_id, job, now)
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
