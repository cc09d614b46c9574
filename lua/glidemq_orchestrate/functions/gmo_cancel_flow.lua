-- gmo_cancel_flow: mark a flow as being cancelled; gmo_advance_flow ends its nodes.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 reason
-- REPLY the previous state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED
-- EFFECTS on a staged or running flow: mark, reason, a first slice of the work. An ended flow is not changed.
local function cancel_flow(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if not state then
    return L.record.not_found(args[2])
  end
  local refused = L.generations.refusal(keys[1], args[2])
  if refused then
    return refused
  end
  if state == 'running' or state == 'staging' then
    local home, now = L.record.home(keys[1], args[2]), tonumber(args[1])
    L.settle.cancel(home, args[2], args[3], now)
    L.advance.slice(home, args[2], now)
  end
  return state
end

redis.register_function { function_name = 'gmo_cancel_flow', callback = cancel_flow, flags = { 'allow-oom' } }
