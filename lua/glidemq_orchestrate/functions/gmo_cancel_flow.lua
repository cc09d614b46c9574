-- gmo_cancel_flow: mark a flow as being cancelled; gmo_advance_flow ends its nodes.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 reason
-- REPLY the previous state of the flow
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

redis.register_function { function_name = 'gmo_cancel_flow', callback = cancel_flow, flags = { 'allow-oom' } }
