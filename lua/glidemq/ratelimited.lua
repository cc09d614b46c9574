-- glidemq_promoteRateLimited: release parked jobs of groups whose waiting time is over.
-- KEYS  1 ratelimited  2 stream
-- ARGS  1 now
-- REPLY integer: jobs appended to the stream
-- EVENT failed (of jobs the bucket can never pay for) | expired

local GROUPS = 100

local function promote_rate_limited(keys, args)
  return L.limited.release(L.hashes.prefix(keys[1], 'ratelimited'), L.numbers.int(args[1], 0), GROUPS)
end

redis.register_function({
  function_name = 'glidemq_promoteRateLimited', callback = promote_rate_limited, flags = { 'allow-oom' },
})
