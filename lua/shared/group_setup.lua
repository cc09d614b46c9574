-- group_setup: the changes to a group when a job is added.

local M = {}
L.group_setup = M

-- The highest number of any group that was removed as idle (parts/cleanup.lua of the other library). A group that is
-- created again continues from there: its earlier jobs, such as failed ones, may return, and their numbers must be
-- past.
local function base(prefix)
  return L.numbers.int(redis.call('GET', prefix .. 'gmo:ordering'), 0)
end

-- The number of a new job, and the first one to wait for if the group has none yet.
local function next_number(prefix, group_key)
  local seq = redis.call('HINCRBY', prefix .. 'ordering', group_key, 1)
  local first = seq == 1 and base(prefix) or 0
  if first > 0 then
    seq = first + 1
    redis.call('HSET', prefix .. 'ordering', group_key, L.numbers.text(seq))
  end
  return seq, first + 1
end

-- Collects the fields of `wanted` (name, number pairs) that differ from the stored ones.
local function differing(stored, wanted)
  local writes = {}
  for i = 1, #wanted, 2 do
    local value = L.numbers.text(wanted[i + 1])
    if stored[wanted[i]] ~= value then
      writes[#writes + 1], writes[#writes + 2] = wanted[i], value
    end
  end
  return writes
end

local function append(list, ...)
  for _, value in ipairs({ ... }) do
    list[#list + 1] = value
  end
end

local function plan_latest(stored, o, now, first)
  local wanted, stale = { 'maxConcurrency', math.max(o.concurrency, 1) }, {}
  if not stored.nextSeq then
    append(wanted, 'nextSeq', first)
  end
  if o.rate_max > 0 then
    append(wanted, 'rateMax', o.rate_max, 'rateDuration', o.rate_duration)
  elseif L.numbers.int(stored.rateMax, 0) > 0 then
    append(stale, 'rateMax', 'rateDuration', 'rateWindowStart', 'rateCount')
  end
  if o.tb_capacity > 0 then
    append(wanted, 'tbCapacity', o.tb_capacity, 'tbRefillRate', o.tb_refill_rate)
    if L.numbers.int(stored.tbCapacity, 0) <= 0 then
      append(wanted, 'tbTokens', o.tb_capacity, 'tbLastRefill', now, 'tbRefillRemainder', 0)
    end
  elseif stored.tbCapacity then
    append(stale, 'tbCapacity', 'tbRefillRate', 'tbTokens', 'tbLastRefill', 'tbRefillRemainder')
  end
  return wanted, stale
end

-- True when the bucket of `o` can never cover the job. `default_cost` applies to a job without a cost.
function M.is_too_expensive(o, default_cost)
  local cost = o.cost > 0 and o.cost or default_cost
  return o.tb_capacity > 0 and cost > o.tb_capacity
end

-- addJob and dedup: the options of the latest job define the group, removals included.
-- Returns the sequence number, or nil when the cost can never be covered; then its number is skipped.
function M.join(prefix, group_key, o, now)
  local seq, first = next_number(prefix, group_key)
  local hash_key = prefix .. 'group:' .. group_key
  local stored = L.groups.load(prefix, group_key)
  local wanted, stale = plan_latest(stored, o, now, first)
  local writes = differing(stored, wanted)
  if #writes > 0 then
    redis.call('HSET', hash_key, unpack(writes))
  end
  if #stale > 0 then
    redis.call('HDEL', hash_key, unpack(stale))
  end
  if M.is_too_expensive(o, 1000) then
    L.groups.leave(prefix, { groupKey = group_key, orderingSeq = seq }, now)
    return nil
  end
  return seq
end

-- A job returns to a group that was removed after it got its number: its options define the group, and its number is
-- past. Returns the group hash.
function M.restore(prefix, group_key, job_id, seq, now)
  local last = math.max(base(prefix), seq)
  redis.call('HSETNX', prefix .. 'ordering', group_key, L.numbers.text(last))
  local o = L.options.decode(redis.call('HGET', prefix .. 'job:' .. job_id, 'opts'))
  local wanted = plan_latest(L.groups.load(prefix, group_key), o, now, last + 1)
  redis.call('HSET', prefix .. 'group:' .. group_key, unpack(differing({}, wanted)))
  return L.groups.load(prefix, group_key)
end

-- addFlow: limits are added and never removed; a child leaves an existing concurrency alone.
function M.join_flow(prefix, group_key, o, now, is_parent)
  local seq, first = next_number(prefix, group_key)
  local stored = L.groups.load(prefix, group_key)
  local wanted = {}
  local function if_absent(field, value)
    if not stored[field] then
      append(wanted, field, value)
    end
  end
  if is_parent or not stored.maxConcurrency then
    append(wanted, 'maxConcurrency', math.max(o.concurrency, 1))
  end
  if_absent('active', 0)
  if_absent('nextSeq', first)
  if o.rate_max > 0 then
    append(wanted, 'rateMax', o.rate_max, 'rateDuration', o.rate_duration)
  end
  if o.tb_capacity > 0 then
    append(wanted, 'tbCapacity', o.tb_capacity, 'tbRefillRate', o.tb_refill_rate)
    if_absent('tbTokens', o.tb_capacity)
    if_absent('tbLastRefill', now)
    if_absent('tbRefillRemainder', 0)
  end
  local writes = differing(stored, wanted)
  if #writes > 0 then
    redis.call('HSET', prefix .. 'group:' .. group_key, unpack(writes))
  end
  return seq
end
