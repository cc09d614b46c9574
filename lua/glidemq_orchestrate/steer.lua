-- gmo_cancel_flow: mark a flow as being cancelled; gmo_advance_flow ends its nodes.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 reason
-- REPLY state of the flow before
-- ERROR GMO_FLOW_NOT_FOUND
-- EFFECTS on a staged or running flow: mark, reason, a first slice of the work. An ended flow stays as it is.
local function cancel_flow(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then
    return L.record.not_found(args[2])
  end
  if state ~= 'running' and state ~= 'staging' then
    return state
  end
  local home = L.record.home(keys[1], args[2])
  if L.settle.stop(home, args[2], 'cancelled', args[3]) then
    redis.call('HSET', keys[1], 'state', 'running')
    L.index.moved(home, args[2], state, 'running', tonumber(args[1]))
  end
  L.advance.slice(home, args[2], tonumber(args[1]))
  return state
end

-- An ended flow begins to run again. Returns nil, or its state where nothing is to be done, or an error.
local function refusal(keys, args, allowed)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then
    return L.record.not_found(args[2])
  end
  if not allowed[state] then
    return state
  end
  local gone = L.retain.refusal(keys[1], args[2])
  if gone then
    return gone
  end
  -- Cancelled while it was being staged: what is missing cannot be run again, and the rest is not the flow.
  if redis.call('HLEN', keys[1] .. ':nodes') < L.numbers.int(redis.call('HGET', keys[1], 'total'), 0) then
    return state
  end
  return nil
end

local function begin_again(keys, args, mark, value, event)
  local home, now = L.record.home(keys[1], args[2]), tonumber(args[1])
  local state = redis.call('HGET', keys[1], 'state')
  redis.call('HDEL', keys[1], 'cancel', 'reason', 'finished_at')
  redis.call('HSET', keys[1], 'state', 'running', mark, value)
  L.index.moved(home, args[2], state, 'running', now)
  redis.call('SADD', home .. 'gmo:todo', args[2])
  L.due.flow(home, args[2], now)
  L.events.emit(home .. 'events', event, '', 'flowId', args[2])
  L.advance.slice(home, args[2], now)
  return redis.call('HGET', keys[1], 'state')
end

-- gmo_retry_flow: run again what did not complete of an ended flow; completed nodes keep their results.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id
-- REPLY state of the flow afterwards (running, or completed where there was nothing to repair)
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED (only its tombstone is left)
-- EFFECTS on a failed or cancelled flow: running, mark, a first slice of the work. Else nothing; nor where nodes
--   are missing because it was cancelled while it was being staged.
-- EVENT flow.retried {flowId} on the events stream of the home queue
local function retry_flow(keys, args)
  return refusal(keys, args, { failed = true, cancelled = true })
    or begin_again(keys, args, 'retry', '1', 'flow.retried')
end

-- gmo_restart_flow: run every node of an ended flow again.
-- KEYS, ARGS, REPLY and ERROR as gmo_retry_flow
-- EFFECTS on a flow that has ended: running, a generation more, mark, a first slice of the work. The results of all
--   nodes are forgotten, and the nodes that running nodes had added are removed. Else nothing.
-- EVENT flow.restarted {flowId} on the events stream of the home queue
local function restart_flow(keys, args)
  local refused = refusal(keys, args, { failed = true, cancelled = true, completed = true })
  if refused then
    return refused
  end
  redis.call('HINCRBY', keys[1], 'generation', 1)
  redis.call('HSET', keys[1], 'started_at', args[1])
  L.order.ensure(keys[1])
  return begin_again(keys, args, 'restart', redis.call('LLEN', keys[1] .. ':order'), 'flow.restarted')
end

redis.register_function { function_name = 'gmo_cancel_flow', callback = cancel_flow, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_retry_flow', callback = retry_flow, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_restart_flow', callback = restart_flow, flags = { 'allow-oom' } }
