-- gmo_advance_flow: do the next slice of what a flow still needs.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id
-- REPLY integer: pieces of work left (0 = nothing left to do)
-- ERROR GMO_FLOW_NOT_FOUND
-- EFFECTS at most SLICE nodes are aborted, reset, failed or released. Repeatable by anybody at any time: all that
--   is to be done stands in the record, so a caller that dies leaves nothing behind but the rest of the work.
L.advance = {}

local SLICE = 50

-- Cancelling: every open node ends now; the lease of a running one is gone with its state.
local function abort_open(flow, key, now)
  local reason = 'cancelled: ' .. (redis.call('HGET', key, 'reason') or '')
  for _, ref in ipairs(redis.call('SRANDMEMBER', key .. ':open', SLICE)) do
    local prefix, job_id = L.record.split(ref)
    redis.call('HSET', prefix .. 'job:' .. job_id, 'revoked', '1')
    L.settle.fail_node(flow, ref, reason, now)
  end
  return redis.call('SCARD', key .. ':open')
end

local function reset_job(prefix, job_id)
  local job_key = prefix .. 'job:' .. job_id
  redis.call('ZREM', prefix .. 'failed', job_id)
  redis.call('HSET', job_key, 'state', 'waiting-children', 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
  redis.call('HDEL', job_key, 'revoked', 'stalledCount', 'progress', 'processedOn', 'gmo:token', 'gmo:entry')
  local done = tonumber(redis.call('HGET', job_key, 'depsCompleted')) or 0
  return done >= redis.call('SCARD', prefix .. 'deps:' .. job_id)
end

-- Retrying, first half: every failed node goes back to waiting. Nothing is released before all are reset.
local function reset_failed(key)
  for _, ref in ipairs(redis.call('SPOP', key .. ':failed', SLICE)) do
    local prefix, job_id = L.record.split(ref)
    redis.call('SADD', key .. ':open', ref)
    redis.call('HINCRBY', key, 'failed', -1)
    if reset_job(prefix, job_id) then
      redis.call('SADD', key .. ':ready', ref)
    end
  end
  local left = redis.call('SCARD', key .. ':failed')
  if left == 0 then
    redis.call('HDEL', key, 'retry')
  end
  return left + redis.call('SCARD', key .. ':ready')
end

-- A failure travels: blocked nodes end as failed, and block their own dependents.
local function fail_blocked(flow, key, now)
  for _, item in ipairs(redis.call('SPOP', key .. ':blocked', SLICE)) do
    local ref, cause = item:match('^(.+)\n([^\n]*)$') -- names of queues may hold a line break, names of nodes not
    if redis.call('SISMEMBER', key .. ':open', ref) == 1 then
      local prefix, job_id = L.record.split(ref)
      L.release.dependents(flow, prefix, job_id, now, cause)
      L.settle.fail_node(flow, ref, 'upstream failed: ' .. cause, now)
    end
  end
  return redis.call('SCARD', key .. ':blocked')
end

local function release_ready(key, now)
  for _, ref in ipairs(redis.call('SPOP', key .. ':ready', SLICE)) do
    L.release.node(ref, now)
  end
  return redis.call('SCARD', key .. ':ready')
end

local function work(flow, key, now)
  local growing = L.grow.go_on(flow, key, now)
  if growing > 0 then
    return growing
  end
  local marks = redis.call('HMGET', key, 'cancel', 'retry')
  if marks[1] then
    return abort_open(flow, key, now)
  end
  if marks[2] then
    return reset_failed(key)
  end
  local untold = L.release.go_on(key, now)
  return untold + fail_blocked(flow, key, now) + release_ready(key, now)
end

-- Returns how many pieces of work are left.
function L.advance.slice(home, flow_id, now)
  local key = L.record.key(home, flow_id)
  if redis.call('HGET', key, 'state') ~= 'running' then
    return 0
  end
  local left = work({ home = home, id = flow_id, node = 'flow' }, key, now)
  if left == 0 then
    redis.call('SREM', home .. 'gmo:todo', flow_id)
  end
  return left
end

local function advance_flow(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    redis.call('SREM', L.record.home(keys[1], args[2]) .. 'gmo:todo', args[2])
    return L.record.not_found(args[2])
  end
  return L.advance.slice(L.record.home(keys[1], args[2]), args[2], tonumber(args[1]))
end

redis.register_function { function_name = 'gmo_advance_flow', callback = advance_flow, flags = { 'allow-oom' } }
