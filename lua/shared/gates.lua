-- gates: the checks that a job with a group must pass to become active.
-- Order, concurrency, token bucket, fixed window; then the group's own pause. A job that returns while it
-- holds its slot (a retry, a resumed step) is stopped only by order and cost: if parked, it would block itself.

local M = {}
L.gates = M

local function park(a, job, group_key, status)
  L.stream.ack(a.prefix .. 'stream', a.group, a.entry_id, a.broadcast)
  redis.call('ZADD', a.prefix .. 'groupq:' .. group_key, L.groups.park_score(a.job_id, job), a.job_id)
  redis.call('HSET', a.prefix .. 'job:' .. a.job_id, 'state', 'group-waiting')
  return status
end

-- Tokens after a refill, the cost, and the ms to wait (0 = enough); nil without a bucket.
local function bucket_state(hash_key, group, job, now)
  if L.numbers.int(group.tbCapacity, 0) <= 0 then
    return nil, nil, 0
  end
  local tokens, cost = L.bucket.refill(hash_key, group, now), L.bucket.cost(job)
  return tokens, cost, tokens < cost and L.bucket.wait(group, cost - tokens) or 0
end

-- Ms until the fixed window admits another job (0 = now), and the two fields to write when one enters.
local function window_state(group, now)
  local int = L.numbers.int
  local max, duration = int(group.rateMax, 0), int(group.rateDuration, 0)
  if max <= 0 or duration <= 0 then
    return 0, nil, nil
  end
  local start, count = int(group.rateWindowStart, 0), int(group.rateCount, 0)
  if now - start >= duration then
    return 0, now, 1
  end
  return count >= max and start + duration - now or 0, start, count + 1
end

local function enter(hash_key, group, seq, is_returning, holds_slot, tokens, window_start, window_count)
  local text, writes = L.numbers.text, {}
  local function add(field, value)
    writes[#writes + 1], writes[#writes + 2] = field, text(value)
  end
  if tokens then
    add('tbTokens', tokens)
  end
  if window_start then
    add('rateWindowStart', window_start)
    add('rateCount', window_count)
  end
  if not holds_slot then
    add('active', L.numbers.int(group.active, 0) + 1)
  end
  if seq > 0 and not is_returning then
    add('nextSeq', seq + 1)
  end
  if #writes > 0 then
    redis.call('HSET', hash_key, unpack(writes))
  end
end

-- The timed gate that stops the job, and for how many ms; nil when none does.
local function timed_block(group, now, bucket_wait, window_wait)
  local pause = L.groups.is_limited(group, now) and L.numbers.int(group.limitedUntil, 0) - now or 0
  local wait = math.max(bucket_wait, window_wait, pause)
  if wait <= 0 then
    return nil, 0
  end
  return bucket_wait > 0 and 'GROUP_TOKEN_LIMITED' or 'GROUP_RATE_LIMITED', wait
end

-- a: prefix job_id entry_id group now broadcast skip_events skip_metrics; job: its fields.
-- Returns nil when the job may run, with its slot taken; else the status, with the job parked or failed.
function M.enter(a, job)
  local prefix, now, group_key = a.prefix, a.now, job.groupKey
  local hash_key = prefix .. 'group:' .. group_key
  local group = L.groups.load(prefix, group_key)
  local seq = L.numbers.int(job.orderingSeq, 0)
  if seq > 0 and not group.nextSeq then
    group, job.groupSlot = L.group_setup.restore(prefix, group_key, a.job_id, seq, now), '0'
  end
  local next_seq = seq > 0 and L.groups.advance(hash_key, group) or 0
  if next_seq > 0 and seq > next_seq then
    return park(a, job, group_key, 'GROUP_ORDERED')
  end
  local is_returning = next_seq > 0 and seq < next_seq
  local holds_slot = is_returning and job.groupSlot ~= '0'
  local limit = L.numbers.int(group.maxConcurrency, 0)
  if limit > 0 and L.numbers.int(group.active, 0) >= limit and not holds_slot then
    return park(a, job, group_key, 'GROUP_FULL')
  end
  local tokens, cost, bucket_wait = bucket_state(hash_key, group, job, now)
  if tokens and cost > L.numbers.int(group.tbCapacity, 0) then
    L.stream.ack(prefix .. 'stream', a.group, a.entry_id, a.broadcast)
    L.bucket.reject(prefix, a.job_id, job, now, a)
    return 'ERR:COST_EXCEEDS_CAPACITY'
  end
  local window_wait, window_start, window_count = window_state(group, now)
  local blocked, wait = timed_block(group, now, bucket_wait, window_wait)
  if blocked and not holds_slot then
    redis.call('ZADD', prefix .. 'ratelimited', now + wait, group_key)
    return park(a, job, group_key, blocked)
  end
  enter(hash_key, group, seq, is_returning, holds_slot, tokens and tokens - cost, window_start, window_count)
  if seq > 0 then
    redis.call('ZREM', prefix .. 'groupq:' .. group_key, a.job_id)
  end
  if job.groupSlot then
    redis.call('HDEL', prefix .. 'job:' .. a.job_id, 'groupSlot')
  end
  return nil
end
