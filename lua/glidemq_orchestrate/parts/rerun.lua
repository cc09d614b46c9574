-- rerun: a retry. Every node in :failed waits again, and its dependents forget its end, in slices; then the ends of the
-- dependencies that do not run again decide about the reset nodes. Nothing is released before all of them are reset.
L.rerun = {}
local SLICE, BUDGET = 50, 250

-- Takes the end of a node out of the counts of the flow.
local function uncount(key, v)
  if v[1] == 'failed' or v[5] then
    redis.call('HINCRBY', key, 'failed', -1)
    if v[3] == 'ignore' then
      redis.call('HINCRBY', key, 'ignored', -1)
    end
  else
    redis.call('HINCRBY', key, v[2] and 'skipped' or 'completed', -1)
  end
end

-- Resets one node, and its dependents forget its end. Returns the cost.
local function reset(key, ref, now)
  local prefix, job_id = L.record.split(ref)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:skipped', 'gmo:on_failure', 'gmo:rule',
    'gmo:end')
  local job = L.jobs.read(prefix, job_id)
  uncount(key, v[1] and v or { 'failed' }) -- a missing job has counted as failed
  redis.call('SADD', key .. ':open', ref)
  redis.call('SADD', key .. ':ready', ref)
  if job then
    L.fresh.reset(prefix, job_id, job, now)
  end
  if v[4] then
    L.rules.guard(prefix, job_id)
  end
  local count, is_small = L.dependents.count(prefix, job_id)
  if not is_small then
    L.dependents.begin(key, ref, { outcome = 'again' })
    return SLICE
  end
  for _, dependent in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
    L.rules.forget(ref, dependent)
  end
  return 5 + count
end

-- Does a slice of the retry; returns how much is left.
function L.rerun.slice(flow, key, now)
  local spent = 0
  while spent < BUDGET do
    local ref = redis.call('SPOP', key .. ':failed')
    if not ref then
      break
    end
    spent = spent + reset(key, ref, now)
  end
  local left = redis.call('SCARD', key .. ':failed')
  if left == 0 and spent < BUDGET then
    left = L.dependents.continue(flow, key, now)
    if left == 0 then
      redis.call('HDEL', key, 'retry')
      L.settle.end_if_done(flow, key, now) -- when all nodes of :failed were removed
    end
  end
  return math.max(left + redis.call('SCARD', key .. ':ready'), 1)
end
