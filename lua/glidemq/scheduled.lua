-- glidemq_promote: move due scheduled jobs to where workers find them.
-- KEYS  1 scheduled  2 stream  3 events
-- ARGS  1 now
-- REPLY integer: members removed, at most 1000 (including expired ones and those without a job)
-- EVENT promoted | expired
--
-- glidemq_nextDue: when the next job or group becomes due.
-- KEYS  1 scheduled  2 ratelimited
-- REPLY integer: ms since the epoch (0 = at once), or -1 when nothing waits

local BUDGET = 1000

local function promote(keys, args)
  return L.scheduled.promote(L.hashes.prefix(keys[1], 'scheduled'), L.numbers.int(args[1], 0), BUDGET)
end

local function next_due(keys)
  return L.scheduled.next_due(keys[1], keys[2])
end

redis.register_function({ function_name = 'glidemq_promote', callback = promote, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'glidemq_nextDue', callback = next_due, flags = { 'allow-oom' } })
