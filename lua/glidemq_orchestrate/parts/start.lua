-- start: a completely staged flow begins to run.
L.start = {}

-- Returns an error when the flow with this digest cannot start, its state when it has started, else nil.
function L.start.refusal(key, flow_id, digest)
  local record = redis.call('HMGET', key, 'digest', 'state', 'total', 'path')
  if not record[1] then
    return L.record.not_found(flow_id)
  end
  if record[1] ~= digest or record[4] then
    return redis.error_reply('GMO_FLOW_CONFLICT flow id ' .. flow_id .. ' belongs to another flow')
  end
  if record[2] ~= 'staging' then
    return record[2]
  end
  local staged = redis.call('HLEN', key .. ':nodes')
  if staged ~= tonumber(record[3]) then
    return redis.error_reply('GMO_FLOW_INCOMPLETE flow ' .. flow_id .. ' has ' .. staged .. ' of ' .. record[3] .. ' nodes')
  end
end

-- Starts a completely staged flow and does the first slice of its work.
function L.start.flow(home, flow_id, now)
  redis.call('HSET', L.record.key(home, flow_id), 'state', 'running', 'started_at', now)
  L.index.moved(home, flow_id, 'staging', 'running', now)
  redis.call('SADD', home .. 'gmo:todo', flow_id)
  L.due.flow(home, flow_id, now)
  L.owners.started(home, flow_id, now)
  L.advance.slice(home, flow_id, now)
end
