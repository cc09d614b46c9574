-- gmo_retry_flow: run the nodes of an ended flow again that did not complete; completed nodes keep their results.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id
-- REPLY state of the flow afterwards (running, or completed if there was nothing to run)
-- ERROR GMO_FLOW_NOT_FOUND, GMO_SUPERSEDED, GMO_FLOW_EXPIRED (only its tombstone is left)
-- EFFECTS on a failed or cancelled flow: running, mark, a first slice of the work. Else nothing; nor if nodes are
--   missing because it was cancelled while it was being staged.
-- EVENT flow.retried {flowId} on the events stream of the home queue
local function retry_flow(keys, args)
  return L.begin_again.refusal(keys, args, { failed = true, cancelled = true })
    or L.begin_again.start(keys, args, 'retry', '1', 'flow.retried')
end

redis.register_function { function_name = 'gmo_retry_flow', callback = retry_flow, flags = { 'allow-oom' } }
