-- gmo_restart_flow: run every node of an ended flow again.
-- KEYS, ARGS, REPLY and ERROR as gmo_retry_flow
-- EFFECTS on a flow that has ended: running, the next generation, mark, a first slice of the work. The results of all
--   nodes are removed, and the nodes that running nodes had added. Else nothing.
-- EVENT flow.restarted {flowId} on the events stream of the home queue
local function restart_flow(keys, args)
  local refused = L.begin_again.refusal(keys, args, { failed = true, cancelled = true, completed = true })
  if refused then
    return refused
  end
  redis.call('HINCRBY', keys[1], 'generation', 1)
  redis.call('HSET', keys[1], 'started_at', args[1])
  L.order.ensure(keys[1])
  return L.begin_again.start(keys, args, 'restart', redis.call('LLEN', keys[1] .. ':order'), 'flow.restarted')
end

redis.register_function { function_name = 'gmo_restart_flow', callback = restart_flow, flags = { 'allow-oom' } }
