-- gmo_start_flow: let a completely staged flow run.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 digest
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_CONFLICT (other digest), GMO_FLOW_INCOMPLETE (nodes are missing)
-- EFFECTS a staged flow becomes running and its first slice of nodes is released. Any other state: nothing.
local function start_flow(keys, args)
  local record = redis.call('HMGET', keys[1], 'digest', 'state', 'total')
  if not record[1] then
    return L.record.not_found(args[2])
  end
  if record[1] ~= args[3] then
    return redis.error_reply('GMO_FLOW_CONFLICT flow id ' .. args[2] .. ' belongs to another flow')
  end
  if record[2] ~= 'staging' then
    return record[2]
  end
  local staged = redis.call('HLEN', keys[1] .. ':nodes')
  if staged ~= tonumber(record[3]) then
    return redis.error_reply('GMO_FLOW_INCOMPLETE flow ' .. args[2] .. ' has ' .. staged .. ' of ' .. record[3] .. ' nodes')
  end
  local home = L.record.home(keys[1], args[2])
  redis.call('HSET', keys[1], 'state', 'running', 'started_at', args[1])
  redis.call('SADD', home .. 'gmo:todo', args[2])
  L.advance.slice(home, args[2], tonumber(args[1]))
  return redis.call('HGET', keys[1], 'state')
end

-- gmo_discard_flow: delete a slice of a flow that never started.
-- KEYS  1 home key of the flow id   2 flow hash
-- ARGS  1 now_ms (unused)   2 flow id   3 digest
-- REPLY integer: nodes left (0 = gone, or it was not a staged flow with this digest)
-- EFFECTS at most 100 jobs with their sets; with the last one the record and the home key.
local function discard_flow(keys, args)
  local record = redis.call('HMGET', keys[2], 'digest', 'state')
  if record[1] ~= args[3] or record[2] ~= 'staging' then
    return 0
  end
  for _, ref in ipairs(redis.call('SPOP', keys[2] .. ':open', 100)) do
    local prefix, job_id = L.record.split(ref)
    local name = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:node')
    redis.call('UNLINK', prefix .. 'job:' .. job_id, prefix .. 'deps:' .. job_id, prefix .. 'parents:' .. job_id)
    -- Out of the tables too: a submission that comes before the last slice must stage the node again.
    redis.call('HDEL', keys[2] .. ':nodes', name or '')
    redis.call('SREM', keys[2] .. ':ready', ref)
  end
  local left = redis.call('SCARD', keys[2] .. ':open')
  if left == 0 then
    redis.call('UNLINK', keys[1], keys[2], keys[2] .. ':nodes', keys[2] .. ':ready')
  end
  return left
end

redis.register_function('gmo_start_flow', start_flow)
redis.register_function { function_name = 'gmo_discard_flow', callback = discard_flow, flags = { 'allow-oom' } }
