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

-- gmo_settle_foreign: tell flows what others have ended, from a position in one of the sets of ended jobs.
-- KEYS  1 <prefix>completed or <prefix>failed
-- ARGS  1 now_ms  2 score to begin at  3 how many entries of that score to pass over  4 limit
-- REPLY {score and number to go on with, 1 if more is there, how many were settled}
-- EFFECTS at most `limit` jobs are looked at, or fewer with more dependents: the EFFECTS of gmo_finish_and_fetch
--   that concern the flow. Flows that need gmo_advance_flow stand in gmo:todo.
local function settle_foreign(keys, args)
  local now, from, passed, limit = tonumber(args[1]), args[2], tonumber(args[3]), tonumber(args[4])
  local prefix = keys[1]:match('^(.*:)[^:]+$')
  local page = redis.call('ZRANGEBYSCORE', keys[1], from, '+inf', 'WITHSCORES', 'LIMIT', passed, limit)
  local spent, settled = 0, 0
  for i = 1, #page, 2 do
    if spent >= limit then
      return { from, passed, 1, settled }
    end
    local cost = L.foreign.settle(prefix, page[i], now)
    spent, settled = spent + 1 + cost, settled + (cost > 0 and 1 or 0)
    if page[i + 1] == from then
      passed = passed + 1
    else
      from, passed = page[i + 1], 1
    end
  end
  return { from, passed, #page == 2 * limit and 1 or 0, settled }
end

redis.register_function { function_name = 'gmo_settle_foreign', callback = settle_foreign, flags = { 'allow-oom' } }
