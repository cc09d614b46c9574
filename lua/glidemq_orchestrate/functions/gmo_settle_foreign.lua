-- gmo_settle_foreign: settle nodes that were ended elsewhere, from a position in one of the sets of ended jobs.
-- KEYS  1 <prefix>completed or <prefix>failed
-- ARGS  1 now_ms  2 score to start at  3 how many entries of that score to skip  4 limit
-- REPLY {score and number to continue with, 1 if there is more, how many were settled}
-- EFFECTS those of gmo_finish_and_fetch on the flow, for at most `limit` jobs, fewer if they have many dependents.
--   Flows that need gmo_advance_flow are in gmo:todo. A job that completed after its node had failed fails again.
local function settle_foreign(keys, args)
  local now, from, passed, limit = tonumber(args[1]), args[2], tonumber(args[3]), tonumber(args[4])
  local prefix = keys[1]:match('^(.*:)[^:]+$')
  local page = redis.call('ZRANGEBYSCORE', keys[1], from, '+inf', 'WITHSCORES', 'LIMIT', passed, limit)
  local spent, settled = 0, 0
  for i = 1, #page, 2 do
    if spent >= limit then
      return { from, passed, 1, settled }
    end
    local cost = L.foreign.settle(prefix, page[i], now)
    spent, settled = spent + 1 + cost, settled + (cost > 0 and 1 or 0)
    local stays = page[i]:byte(-1) ~= 125 or redis.call('ZSCORE', keys[1], page[i]) -- jobs of elements are removed
    if page[i + 1] ~= from then
      from, passed = page[i + 1], 0
    end
    passed = passed + (stays and 1 or 0)
  end
  return { from, passed, #page == 2 * limit and 1 or 0, settled }
end

redis.register_function { function_name = 'gmo_settle_foreign', callback = settle_foreign, flags = { 'allow-oom' } }
