-- The lease of an attempt. Whoever begins one (fetch.lua) writes a token that only this attempt knows; what an attempt sends later is
-- taken only while the job is active, carries that token, and has the activation time that the attempt saw. The
-- last part fences off Node workers too: they rewrite processedOn when they take a job over, but know no token.
-- Proof in ARGS of gmo_progress and gmo_grow: 2 job id   3 stream entry id   4 group   5 token   6 processedOn
L.lease = {}

-- Returns what the caller needs of the job, or nil and the error reply.
function L.lease.check(keys, args)
  local job_id = args[2]
  local fields = redis.call('HMGET', keys[1], 'state', 'gmo:token', 'processedOn')
  if not fields[1] then
    return nil, redis.error_reply('GMO_STALE job ' .. job_id .. ' is gone')
  end
  if fields[1] ~= 'active' or fields[2] ~= args[5] or fields[3] ~= args[6] then
    return nil, redis.error_reply('GMO_STALE this attempt no longer owns job ' .. job_id .. ', which is ' .. fields[1])
  end
  return { prefix = keys[1]:sub(1, #keys[1] - #('job:' .. job_id)), job_id = job_id }
end

-- gmo_heartbeats: keep the leases of many attempts of one queue.
-- KEYS  1 stream            ARGS  1 now_ms, then per attempt (at most 500): job id, token, processedOn
-- REPLY per attempt: 1 kept, 0 kept but the job was revoked and should stop, -1 not the worker's any more
local function heartbeats(keys, args)
  local prefix, kept = L.hashes.prefix(keys[1], 'stream'), {}
  for at = 2, math.min(#args, 1501) - 2, 3 do
    local key = prefix .. 'job:' .. args[at]
    local v = redis.call('HMGET', key, 'state', 'gmo:token', 'processedOn', 'revoked')
    if v[1] == 'active' and v[2] == args[at + 1] and v[3] == args[at + 2] then
      redis.call('HSET', key, 'lastActive', args[1])
      kept[#kept + 1] = v[4] == '1' and 0 or 1
    else
      kept[#kept + 1] = -1
    end
  end
  return kept
end

-- gmo_progress: store progress and tell the readers of events.
-- KEYS  1 job hash          ARGS  1 now_ms, proof, 7 progress JSON
-- REPLY integer: 1          ERROR GMO_STALE
-- EVENT progress {data}
local function progress(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  redis.call('HSET', keys[1], 'progress', args[7], 'lastActive', args[1])
  L.events.emit(lease.prefix .. 'events', 'progress', lease.job_id, 'data', args[7])
  return 1
end

redis.register_function { function_name = 'gmo_heartbeats', callback = heartbeats, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_progress', callback = progress, flags = { 'allow-oom' } }
