-- gmo_retry_flow: rerun the nodes of an ended flow that did not complete; completed nodes keep their results.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id   optional, as in gmo_own_flow: 3 name of an owner   4 its lapse   5 what happens then (''
--       = no owner)   6.. refs of completed nodes to rerun too, since their removed results are needed
-- REPLY state of the flow afterwards (running, or completed if there was nothing to run)
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED, GMO_FLOW_EXPIRED (only its tombstone remains)
-- EFFECTS on a failed or cancelled flow: running, mark, a first slice of the work. Else nothing; nor if it was
--   cancelled while it was being staged.
-- EVENT flow.retried {flowId} on the events stream of the home queue
local AGAIN = { failed = true, cancelled = true }

local function retry_flow(keys, args)
  local state = redis.call('HGET', keys[1], 'state')
  if state and not AGAIN[state] then
    return L.generations.refusal(keys[1], args[2]) or state
  end
  local refused = L.begin_again.refusal(keys[1], args[2])
  if refused then
    return refused.err:find('^GMO_FLOW_INCOMPLETE') and state or refused
  end
  for first = 6, #args, 1000 do
    redis.call('SADD', keys[1] .. ':failed', unpack(args, first, math.min(first + 999, #args)))
  end
  if (args[3] or '') ~= '' then
    L.owners.add(L.record.home(keys[1], args[2]), args[2], args[3], args[4] .. '\n' .. args[5], tonumber(args[1]))
  end
  return L.begin_again.start(keys[1], args[2], 'failed', tonumber(args[1]))
end

redis.register_function { function_name = 'gmo_retry_flow', callback = retry_flow, flags = { 'allow-oom' } }
