-- Nodes that somebody else has ended: a Node worker, a revocation, an expiry. Their job says so, the record does not.
-- What a supervisor does is repeatable and may be done by two at once: `:open` counts every end once.
L.foreign = {}
local SETTLED, EDGE = 5, 1 -- what a settlement costs of the limit of a call, and each dependent that it tells
local WIDEST = 50          -- more dependents are told in slices

-- A released node that waits in the stream although it asked for a delay: whoever released it knows no delays.
-- Only while nobody holds its entry, and only where the entry is among the newest: this is a courtesy, not order.
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

-- Tells the flow of a job that the job has ended. Returns what it cost (0 = there was nothing to tell), and the flow.
function L.foreign.settle(prefix, job_id, now)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:flow', 'state', 'failedReason')
  if not job[1] or (job[2] ~= 'completed' and job[2] ~= 'failed') then
    return 0
  end
  local flow, ref = L.record.of_job(prefix, job_id), prefix .. job_id
  if not flow or redis.call('SISMEMBER', L.record.key(flow.home, flow.id) .. ':open', ref) == 0 then
    return 0
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
