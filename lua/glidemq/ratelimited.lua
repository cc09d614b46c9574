-- glidemq_promoteRateLimited: release parked jobs of groups whose waiting time is over.
-- KEYS  1 ratelimited  2 stream
-- ARGS  1 now
-- REPLY integer: jobs appended to the stream
-- EVENT failed (of jobs the bucket can never pay for) | expired

local GROUPS = 100
local JOBS = 1000

local function budget(group)
  local int = L.numbers.int
  local rate_max, limit = int(group.rateMax, 0), int(group.maxConcurrency, 0)
  local count = JOBS
  if rate_max > 0 then
    count = math.min(count, rate_max)
  end
  if limit > 0 then
    count = math.min(count, math.max(limit - int(group.active, 0), 0))
  end
  return count
end

local function promote_group(prefix, group_key, now)
  redis.call('ZREM', prefix .. 'ratelimited', group_key)
  local group = L.groups.load(prefix, group_key)
  if L.groups.defer_limited(prefix, group_key, group, now) then
    return 0
  end
  if group.limitedUntil then
    redis.call('HDEL', prefix .. 'group:' .. group_key, 'limitedUntil')
  end
  if not L.bucket.admits_head(prefix, group_key, group, now, true) then
    return 0
  end
  return L.groups.move_parked(prefix, group_key, group, budget(group), now, true)
end

local function promote_rate_limited(keys, args)
  local now, prefix = L.numbers.int(args[1], 0), L.hashes.prefix(keys[1], 'ratelimited')
  local due = redis.call('ZRANGEBYSCORE', keys[1], 0, now, 'LIMIT', 0, GROUPS)
  local count = 0
  for _, group_key in ipairs(due) do
    count = count + promote_group(prefix, group_key, now)
  end
  return count
end

redis.register_function({
  function_name = 'glidemq_promoteRateLimited', callback = promote_rate_limited, flags = { 'allow-oom' },
})
