-- Nodes that were ended outside these functions, by a Node worker, a revocation or an expiry: their jobs have ended,
-- but they are open in the record. Idempotent, also with two concurrent supervisors: `:open` counts every end once.
L.foreign = {}
local SETTLED, EDGE = 5, 1 -- the cost of a settlement towards the limit of a call, and of each notified dependent
local WIDEST = 50          -- more dependents are notified in slices

-- Delays a released node that is in the stream because a Node worker released it and ignored its delay. Only while no
-- worker holds its entry, and only if the entry is among the newest: best effort, no guarantee.
local function reroute(flow, ref, now)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  local job = redis.call('HMGET', job_key, 'state', 'delay', 'gmo:entry', 'processedOn')
  if job[1] ~= 'waiting' or (tonumber(job[2]) or 0) <= 0 or job[3] or (job[4] and job[4] ~= '') then
    return
  end
  for _, entry in ipairs(redis.call('XREVRANGE', prefix .. 'stream', '+', '-', 'COUNT', WIDEST)) do
    if L.stream.job_id(entry[2]) == job_id then
      local held = redis.pcall('XPENDING', prefix .. 'stream', 'workers', entry[1], entry[1], 1)
      if held.err or #held == 0 then
        redis.call('XDEL', prefix .. 'stream', entry[1])
        redis.call('HSET', job_key, 'state', 'waiting-children')
        L.release.node(flow, ref, now)
      end
      return
    end
  end
end

-- Fails the job of a node again that its flow has counted as failed: a Node worker has completed it since, which
-- glide-mq does not refuse. Returns the cost.
local function fail_again(prefix, job_id, state, now)
  if state ~= 'completed' then
    return 0
  end
  redis.call('ZREM', prefix .. 'completed', job_id)
  redis.call('ZADD', prefix .. 'failed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'failed')
  redis.call('HDEL', prefix .. 'job:' .. job_id, 'returnvalue')
  return SETTLED
end

-- Lets a node run that a Node worker ended after losing it and before another start: its job has ended but was never
-- active. Returns whether that was the case.
local function refuse_late(flow, ref, withdrawn, processed_on, now)
  if not withdrawn or (processed_on and processed_on ~= '') then
    return false
  end
  local key = L.record.key(flow.home, flow.id)
  redis.call('SADD', key .. ':again', 'late\n' .. ref)
  L.begin_again.start(key, flow.id, 'again', now)
  return true
end

-- Settles the node of an ended job. Returns the cost (0 = nothing to settle), the flow, and its id or '' as job_failed.
function L.foreign.settle(prefix, job_id, now)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:flow', 'state', 'failedReason', 'gmo:end',
    'gmo:withdrawn', 'processedOn', 'gmo:removed')
  if not job[1] and L.element_jobs.array_of(prefix, job_id) then
    local x = { now = now, flows = {} }
    L.element_jobs.settle(x, prefix, job_id)
    return x.spent, nil, x.flows[1] or ''
  end
  if not job[1] or job[7] or (job[2] ~= 'completed' and job[2] ~= 'failed') then
    return 0
  end
  local flow, ref = L.record.of_job(prefix, job_id), prefix .. job_id
  if not flow or redis.call('SISMEMBER', L.record.key(flow.home, flow.id) .. ':open', ref) == 0 then
    return job[4] and fail_again(prefix, job_id, job[2], now) or 0
  elseif refuse_late(flow, ref, job[5], job[6], now) then
    return WIDEST
  end
  local dependents = redis.call('SCARD', prefix .. 'parents:' .. job_id)
  local cost = SETTLED + EDGE * math.min(dependents, WIDEST)
  if job[2] == 'failed' then
    return cost + WIDEST, flow, L.settle.job_failed(prefix, job_id, job[3] or '', now)
  end
  local unsettled = L.settle.job_completed(flow, prefix, job_id, now)
  if dependents <= WIDEST then
    for _, dependent in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
      reroute(flow, dependent, now)
    end
  end
  return cost, flow, unsettled
end
