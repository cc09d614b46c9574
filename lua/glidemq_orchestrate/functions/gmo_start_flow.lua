-- gmo_start_flow: start a completely staged flow.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   3 digest
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_CONFLICT (other digest or path), GMO_FLOW_INCOMPLETE (nodes are missing)
-- EFFECTS a staged flow becomes running and its first slice of nodes is released. In any other state nothing.
local function start_flow(keys, args)
  local refused = L.start.refusal(keys[1], args[2], args[3])
  if refused then
    return refused
  end
  L.start.flow(L.record.home(keys[1], args[2]), args[2], tonumber(args[1]))
  return redis.call('HGET', keys[1], 'state')
end

redis.register_function('gmo_start_flow', start_flow)
