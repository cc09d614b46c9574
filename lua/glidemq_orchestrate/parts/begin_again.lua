-- begin_again: restarts a flow whose nodes rerun, even if it has ended.
L.begin_again = {}

-- Nil when the flow may restart, else an error reply.
function L.begin_again.refusal(key, flow_id)
  local refused = L.retain.refusal(key, flow_id)
  if refused then
    return refused
  end
  local v = redis.call('HMGET', key, 'started_at', 'state')
  if not v[1] then -- nodes may be missing, or items of arrays
    return redis.error_reply('GMO_FLOW_INCOMPLETE flow ' .. L.generations.split(flow_id) .. (v[2] == 'staging'
      and ' is still being submitted' or ' was cancelled while it was being submitted: submit it again'))
  end
end

-- Whether the flow has work that must be done before its nodes may change.
local function is_busy(key)
  return redis.call('HEXISTS', key, 'after') == 1
    or redis.call('EXISTS', key .. ':notifying', key .. ':blocked', key .. ':growing') > 0
end

-- Whether nodes may change: an error reply, the reply for a busy flow, or nil.
function L.begin_again.refusal_of_change(key, flow_id)
  local refused = L.begin_again.refusal(key, flow_id)
  if refused then
    return refused
  end
  local v = redis.call('HMGET', key, 'state', 'cancel')
  if v[1] == 'running' and v[2] then
    return redis.error_reply('GMO_FLOW_ENDED flow ' .. L.generations.split(flow_id) .. ' is being stopped')
  end
  return is_busy(key) and { 'busy' } or nil
end

-- Sets the flow to running with the mark `retry`, does the first slice and returns the state.
function L.begin_again.start(key, flow_id, mark, now)
  local home, state = L.record.home(key, flow_id), redis.call('HGET', key, 'state')
  if state == 'running' then
    redis.call('HSETNX', key, 'retry', mark)
  else
    redis.call('HDEL', key, 'cancel', 'reason', 'stopped_at', 'finished_at')
    redis.call('HSET', key, 'state', 'running', 'retry', mark)
    redis.call('HINCRBY', key, 'runs', 1)
    L.index.moved(home, flow_id, state, 'running', now)
    L.due.flow(home, flow_id, now)
    L.owners.started(home, flow_id, now)
    L.flow_events.emit(home, 'flow.retried', flow_id)
  end
  redis.call('SADD', home .. 'gmo:todo', flow_id)
  L.advance.slice(home, flow_id, now)
  return redis.call('HGET', key, 'state')
end
