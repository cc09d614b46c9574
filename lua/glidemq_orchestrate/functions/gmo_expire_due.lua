-- gmo_expire_due: do a slice of the work that is due in a queue.
-- KEYS  1 <home>gmo:due
-- ARGS  1 now_ms
-- REPLY {how much was due, when something is due next (0 = at once) or -1}: call again until the first is 0
-- EFFECTS those of glidemq_promote, glidemq_promoteRateLimited and glidemq_sweepSuspended, and nodes that fail are
--   settled; flows past their deadline are stopped and fail; nodes that no worker has started in time fail; flows whose
--   last owner has lapsed are cancelled or kept, see parts/owners.lua. Idempotent, by any client at any time.
local DEADLINES = 20

local function expire_due(keys, args)
  local now, home = tonumber(args[1]), L.hashes.prefix(keys[1], 'gmo:due')
  L.priorities.survey(home)
  local done = L.due_work.slice(home, now, DEADLINES)
  return { done, L.due_work.next(home, now) }
end

redis.register_function { function_name = 'gmo_expire_due', callback = expire_due, flags = { 'allow-oom' } }
