-- bucket: the token bucket of a group, in millitokens; the refill rate is millitokens per second.

local M = {}
L.bucket = M

local DEFAULT_COST = 1000
local INSPECTIONS = 10
local REASON = 'cost exceeds token bucket capacity'

function M.cost(job)
  return L.numbers.int(job.cost, DEFAULT_COST)
end

-- Milliseconds until `missing` millitokens have flowed in.
function M.wait(group, missing)
  return math.ceil(missing * 1000 / math.max(L.numbers.int(group.tbRefillRate, 0), 1))
end

local function store(hash_key, group, tokens, now, remainder)
  local text = L.numbers.text
  group.tbTokens, group.tbLastRefill, group.tbRefillRemainder = text(tokens), text(now), text(remainder)
  redis.call('HSET', hash_key, 'tbTokens', group.tbTokens, 'tbLastRefill', group.tbLastRefill,
    'tbRefillRemainder', group.tbRefillRemainder)
end

-- Adds the tokens since the last refill and returns the new amount.
-- The clock of a full bucket moves too: otherwise the idle time would refill it again at the first withdrawal.
function M.refill(hash_key, group, now)
  local int = L.numbers.int
  local capacity, rate = int(group.tbCapacity, 0), int(group.tbRefillRate, 0)
  if capacity <= 0 then
    return 0
  end
  local tokens, last = int(group.tbTokens, capacity), int(group.tbLastRefill, now)
  if tokens >= capacity then
    if now > last then
      store(hash_key, group, capacity, now, 0)
    end
    return capacity
  end
  local elapsed = now - last
  if elapsed <= 0 or rate <= 0 then
    return tokens
  end
  elapsed = math.min(elapsed, math.ceil(capacity * 1000 / rate))
  local raw = elapsed * rate + int(group.tbRefillRemainder, 0)
  tokens = math.min(capacity, tokens + math.floor(raw / 1000))
  store(hash_key, group, tokens, now, raw % 1000)
  return tokens
end

-- Fails a job that costs more than the bucket can ever hold.
-- `group` (optional) is the loaded group hash of a caller that promotes parked jobs itself.
function M.reject(prefix, job_id, job, now, quiet, group)
  L.jobs.set_failed(prefix, job_id, REASON, now)
  if not quiet.skip_events then
    L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', REASON)
  end
  if not quiet.skip_metrics then
    L.metrics.record(prefix .. 'metrics:failed', now, L.metrics.duration(job, now))
  end
  L.groups.leave(prefix, job, now, group)
end

-- True when the bucket covers the parked job at the head, or when nothing is parked.
-- Otherwise the group is registered for a later try. Heads that can never run are removed, ten at most.
function M.admits_head(prefix, group_key, group, now, is_tick)
  local capacity = L.numbers.int(group.tbCapacity, 0)
  if capacity <= 0 then
    return true
  end
  local queue, limited = prefix .. 'groupq:' .. group_key, prefix .. 'ratelimited'
  local tokens = M.refill(prefix .. 'group:' .. group_key, group, now)
  for _ = 1, INSPECTIONS do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      return true
    end
    local job = L.jobs.read(prefix, head)
    local cost = job and M.cost(job)
    if job and cost <= capacity then
      if tokens >= cost or (not is_tick and L.numbers.int(group.tbRefillRate, 0) <= 0) then
        return true
      end
      redis.call('ZADD', limited, now + M.wait(group, cost - tokens), group_key)
      return false
    end
    redis.call('ZREM', queue, head)
    if job then
      M.reject(prefix, head, job, now, {}, group)
    end
  end
  redis.call('ZADD', limited, now, group_key)
  return false
end
