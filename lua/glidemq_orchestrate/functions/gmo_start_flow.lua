-- gmo_start_flow: start a completely staged flow.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 digest
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_CONFLICT (other digest or path), GMO_FLOW_INCOMPLETE (nodes are missing)
-- EFFECTS a staged flow becomes running and its first slice of nodes is released. In any other state nothing.
local function start_flow(keys, args)
  local record = redis.call('HMGET', keys[1], 'digest', 'state', 'total', 'path')
  if not record[1] then
    return L.record.not_found(args[2])
  end
  if record[1] ~= args[3] or record[4] then
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
  L.index.moved(home, args[2], 'staging', 'running', tonumber(args[1]))
  redis.call('SADD', home .. 'gmo:todo', args[2])
  L.due.flow(home, args[2], tonumber(args[1]))
  L.advance.slice(home, args[2], tonumber(args[1]))
  return redis.call('HGET', keys[1], 'state')
end

redis.register_function('gmo_start_flow', start_flow)
