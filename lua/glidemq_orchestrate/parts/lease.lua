-- The lease of an attempt. fetch.lua writes a token that only this attempt knows. What the attempt sends later is
-- accepted only while the job is active and has that token and the activation time of the attempt. The time detects
-- Node workers: they write processedOn when they take a job over, but no token.
-- Proof in ARGS of gmo_progress, gmo_grow and gmo_write_messages: 2 job id   3 stream entry id   4 group   5 token   6 processedOn
L.lease = {}

-- The name of an attempt, of its token and the time of its activation.
function L.lease.attempt(token, processed_on)
  return token .. ' ' .. processed_on
end

-- Returns the prefix and the id of the job, or nil and the error reply.
function L.lease.check(keys, args)
  local job_id = args[2]
  local fields = redis.call('HMGET', keys[1], 'state', 'gmo:token', 'processedOn')
  if not fields[1] then
    return nil, redis.error_reply('GMO_STALE job ' .. job_id .. ' was removed')
  end
  if fields[1] ~= 'active' or fields[2] ~= args[5] or fields[3] ~= args[6] then
    return nil, redis.error_reply('GMO_STALE this attempt no longer owns job ' .. job_id .. ', which is ' .. fields[1])
  end
  return { prefix = keys[1]:sub(1, #keys[1] - #('job:' .. job_id)), job_id = job_id }
end
