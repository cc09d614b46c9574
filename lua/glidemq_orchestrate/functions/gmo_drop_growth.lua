-- gmo_drop_growth: remove a slice of the nodes that were staged for a flow and did not join it.
-- KEYS  1 flow hash      ARGS  1 now_ms (unused)   2 flow id   3 growth id
-- REPLY integer: remaining nodes (0 = all removed, or they are joining the flow)
local function drop_growth(keys, args)
  return L.grow.drop(L.record.home(keys[1], args[2]), args[3], args[2])
end

redis.register_function { function_name = 'gmo_drop_growth', callback = drop_growth, flags = { 'allow-oom' } }
