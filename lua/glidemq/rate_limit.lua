-- glidemq_rateLimit: count one start against the rate limit of the queue.
-- KEYS  1 rate  2 meta
-- ARGS  1 max per window (<= 0: from meta)  2 window ms  3 now
-- REPLY integer: 0 = allowed, else ms to wait

local function rate_limit(keys, args)
  local int = L.numbers.int
  local max, duration, now = int(args[1], 0), int(args[2], 0), int(args[3], 0)
  if max <= 0 then
    local stored = redis.call('HMGET', keys[2], 'rateLimitMax', 'rateLimitDuration')
    max, duration = int(stored[1], 0), int(stored[2], 0)
    if max <= 0 then
      return 0
    end
  end
  local window = redis.call('HMGET', keys[1], 'windowStart', 'count')
  local start = int(window[1], 0)
  if now - start >= duration then
    redis.call('HSET', keys[1], 'windowStart', L.numbers.text(now), 'count', 1)
    return 0
  end
  if int(window[2], 0) >= max then
    return duration - (now - start)
  end
  redis.call('HINCRBY', keys[1], 'count', 1)
  return 0
end

redis.register_function({
  function_name = 'glidemq_rateLimit', callback = rate_limit, flags = { 'allow-oom' },
})
