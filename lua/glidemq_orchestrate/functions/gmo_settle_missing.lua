-- gmo_settle_missing: end a node whose job was removed before its end was settled.
-- KEYS  1 flow hash  2 job hash  3 set of its dependents (glide-mq's `parents`)
-- ARGS  1 now_ms  2 flow id  3 job id  4 JSON {node, job, completed, result, reason}  5.. refs of its dependents
-- REPLY 1, or 0 when the node has ended or its job exists; then nothing was changed
-- EFFECTS the job exists again as ended, with the field gmo:gone if its data was removed; also those of its outcome on
--   its flow. If a Node worker has notified a dependent before the job was removed, the job has completed, regardless
--   of ARGS 4.

-- Whether any dependent has counted the job as completed.
local function is_notified(ref, dependents)
  for i = 1, math.min(#dependents, 1000) do
    local prefix, job_id = L.record.split(dependents[i])
    if redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'depdone:' .. ref) == 1 then
      return true
    end
  end
  return false
end

local function settle_missing(keys, args)
  local now, job_id, outcome = tonumber(args[1]), args[3], cjson.decode(args[4])
  local prefix = keys[2]:sub(1, #keys[2] - #('job:' .. job_id))
  local ref, dependents = prefix .. job_id, {}
  local v = redis.call('HMGET', keys[2], 'state', 'gmo:removed')
  if redis.call('SISMEMBER', keys[1] .. ':open', ref) == 0 or (v[1] and not v[2]) then
    return 0
  end
  for i = 5, #args do
    dependents[i - 4] = args[i]
  end
  local is_completed = outcome.completed or is_notified(ref, dependents)
  for first = 1, #dependents, 1000 do
    redis.call('SADD', keys[3], unpack(dependents, first, math.min(first + 999, #dependents)))
  end
  local home = L.record.home(keys[1], args[2])
  if redis.call('HEXISTS', keys[2], 'gmo:removed') == 0 then
    redis.call('UNLINK', keys[2]) -- at most a late write of a worker
    redis.call('HSET', keys[2], 'data', 'null', 'opts', '{}', 'timestamp', args[1], 'delay', '0', 'priority', '0',
      'maxAttempts', '0', 'gmo:gone', '1')
  end
  redis.call('HDEL', keys[2], 'gmo:removed', 'returnvalue')
  redis.call('HSET', keys[2], 'id', job_id, 'name', outcome.job, 'attemptsMade', '0', 'finishedOn', args[1],
    'gmo:flow', args[2], 'gmo:home', home, 'gmo:node', outcome.node)
  if is_completed then
    redis.call('HSET', keys[2], 'state', 'completed', 'returnvalue', outcome.result)
    redis.call('ZADD', prefix .. 'completed', now, job_id)
  else
    redis.call('HSET', keys[2], 'state', 'failed', 'failedReason', outcome.reason)
    redis.call('ZADD', prefix .. 'failed', now, job_id)
    L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', outcome.reason)
  end
  L.foreign.settle(prefix, job_id, now)
  return 1
end

redis.register_function { function_name = 'gmo_settle_missing', callback = settle_missing, flags = { 'allow-oom' } }
