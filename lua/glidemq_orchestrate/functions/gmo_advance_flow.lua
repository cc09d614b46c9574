-- gmo_advance_flow: do the next slice of the open work of a flow.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id
-- REPLY integer: remaining pieces of work (0 = nothing to do)
-- ERROR GMO_FLOW_NOT_FOUND
-- EFFECTS at most SLICE nodes are cancelled, reset, failed, skipped or released. Idempotent, by any client at any time:
--   all open work is in the record, so another caller can continue after a crash.
local function advance_flow(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    redis.call('SREM', L.record.home(keys[1], args[2]) .. 'gmo:todo', args[2])
    return L.record.not_found(args[2])
  end
  return L.advance.slice(L.record.home(keys[1], args[2]), args[2], tonumber(args[1]))
end

redis.register_function { function_name = 'gmo_advance_flow', callback = advance_flow, flags = { 'allow-oom' } }
