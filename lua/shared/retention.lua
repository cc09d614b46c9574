-- retention: how many finished jobs are kept.

local M = {}
L.retention = M

local BATCH = 1000

local function delete(set_key, prefix, ids)
  for _, job_id in ipairs(ids) do
    L.jobs.unlink(prefix, job_id)
  end
  L.hashes.zrem_all(set_key, ids)
end

local function by_age(set_key, prefix, age, now)
  local oldest_kept = now - age * 1000
  delete(set_key, prefix, redis.call('ZRANGEBYSCORE', set_key, 0, oldest_kept, 'LIMIT', 0, BATCH))
end

local function by_count(set_key, prefix, count)
  local excess = math.min(redis.call('ZCARD', set_key) - count, BATCH)
  if excess > 0 then
    delete(set_key, prefix, redis.call('ZRANGE', set_key, 0, excess - 1))
  end
end

-- mode `true`: this job; `count`: all but the newest `count`; `age_count`: older than `age` seconds, then by
-- count; anything else keeps all. The job just finished counts like every other.
function M.apply(set_key, prefix, job_id, mode, count, age, now)
  if mode == 'true' then
    delete(set_key, prefix, { job_id })
    return
  end
  if mode == 'age_count' and age > 0 then
    by_age(set_key, prefix, age, now)
  end
  if (mode == 'count' or mode == 'age_count') and count > 0 then
    by_count(set_key, prefix, count)
  end
end
