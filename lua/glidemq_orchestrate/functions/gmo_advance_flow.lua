-- gmo_advance_flow: do the next slice of what a flow still needs.
-- KEYS  1 flow hash
-- ARGS  1 now_ms   2 flow id
-- REPLY integer: pieces of work left (0 = nothing left to do)
-- ERROR GMO_FLOW_NOT_FOUND
-- EFFECTS at most SLICE nodes are aborted, reset, failed, skipped or released. Repeatable by anybody at any time: all that
--   is to be done stands in the record, so a caller that dies leaves nothing behind but the rest of the work.
local function advance_flow(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    redis.call('SREM', L.record.home(keys[1], args[2]) .. 'gmo:todo', args[2])
    return L.record.not_found(args[2])
  end
  return L.advance.slice(L.record.home(keys[1], args[2]), args[2], tonumber(args[1]))
end

redis.register_function { function_name = 'gmo_advance_flow', callback = advance_flow, flags = { 'allow-oom' } }
