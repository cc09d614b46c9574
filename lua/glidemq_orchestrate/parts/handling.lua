-- handling: a worker of a subscription begins and ends messages. h: prefix stream group consumer now; see broadcasts.lua.
L.handling = {}

local function field(h, name)
  return 'gmo:' .. name .. ':' .. h.group
end

local function acknowledge(h, entry_id, is_retry)
  redis.call('XACK', h.stream, h.group, entry_id)
  if is_retry then
    redis.call('XDEL', h.stream, entry_id)
  end
end

-- The number of failed attempts: ours, or glide-mq's if a Node worker of the subscription has counted further.
local function tries(h, key)
  local own = L.numbers.int(redis.call('HGET', key, field(h, 'tries')), 0)
  return math.max(own, L.numbers.int(redis.call('HGET', key .. ':sub:' .. h.group, 'a'), 0))
end

-- The message has failed for good in this subscription.
local function fail_for_good(h, job_id, entry_id, reason, is_retry, has_letter)
  local key, text = h.prefix .. 'job:' .. job_id, L.numbers.text
  local v = redis.call('HMGET', key, 'name', 'data', 'processedOn')
  local made = tries(h, key)
  redis.call('HSET', key, field(h, 'sub'), 'failed\n' .. text(h.now) .. '\n' .. reason)
  redis.call('HDEL', key, field(h, 'tries'), field(h, 'stalls'), field(h, 'suspect'))
  redis.call('UNLINK', key .. ':sub:' .. h.group)
  acknowledge(h, entry_id, is_retry)
  L.events.emit(h.prefix .. 'events', 'failed', job_id, 'failedReason', reason, 'subscription', h.group)
  L.metrics.record(h.prefix .. 'metrics:failed', h.now, h.now - L.numbers.int(v[3], h.now))
  if has_letter then
    L.dead_letters.note_message(h.prefix, job_id, h.group, h.now, { v[1] or '', v[2] or 'null', reason, made })
  end
  L.broadcasts.settle(h, job_id, entry_id)
  return 'failed'
end

-- Whether the entry of a message that has begun is that of a retry.
local function is_retry_entry(key, entry_id)
  local first = redis.call('HGET', key, 'gmo:message')
  return first and first ~= entry_id or false
end

-- Begins a message that this worker holds. Returns the fields of its job and how often it has failed, or nil: it must
-- not run, and was acknowledged.
function L.handling.begin(h, job_id, entry_id, is_retry)
  local key = h.prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', key, 'state', 'revoked', 'expireAt', field(h, 'sub'))
  local was_told = v[2] == '1' and v[4] and v[4]:find('^failed\n') -- by the client that revoked it
  if not v[1] or was_told then
    acknowledge(h, entry_id, is_retry)
    return nil
  end
  if not is_retry then
    redis.call('HSETNX', key, 'gmo:message', entry_id)
  end
  local expires = L.numbers.int(v[3], 0)
  if v[2] == '1' or expires > 0 and h.now > expires then
    fail_for_good(h, job_id, entry_id, v[2] == '1' and 'revoked' or 'expired', is_retry, v[2] ~= '1')
    return nil
  end
  redis.call('HSET', key, field(h, 'sub'), 'active\n' .. entry_id, 'state', 'active', 'processedOn',
    L.numbers.text(h.now), 'lastActive', L.numbers.text(h.now))
  redis.call('ZREM', h.prefix .. 'completed', job_id)
  redis.call('ZREM', h.prefix .. 'failed', job_id)
  return redis.call('HGETALL', key), tries(h, key)
end

-- The message was handled in this subscription.
local function done(h, job_id, entry_id, result, is_retry)
  local key = h.prefix .. 'job:' .. job_id
  local started = redis.call('HGET', key, 'processedOn')
  redis.call('HSET', key, 'returnvalue', result)
  redis.call('HDEL', key, field(h, 'sub'), field(h, 'tries'), field(h, 'stalls'), field(h, 'suspect'))
  redis.call('UNLINK', key .. ':sub:' .. h.group)
  acknowledge(h, entry_id, is_retry)
  L.events.emit(h.prefix .. 'events', 'completed', job_id, 'returnvalue', result, 'subscription', h.group)
  L.metrics.record(h.prefix .. 'metrics:completed', h.now, h.now - L.numbers.int(started, h.now))
  L.broadcasts.settle(h, job_id, entry_id)
  return 'ok'
end

-- The message has failed: it is tried again after `backoff` ms, or has failed for good.
local function fail(h, job_id, entry_id, reason, is_retry, allowed, backoff)
  local key = h.prefix .. 'job:' .. job_id
  local made = L.numbers.text(tries(h, key) + 1)
  redis.call('HSET', key, field(h, 'tries'), made)
  if allowed <= 0 or tonumber(made) >= allowed then
    return fail_for_good(h, job_id, entry_id, reason, is_retry, true)
  end
  redis.call('HSET', key .. ':sub:' .. h.group, 'a', made)
  redis.call('EXPIRE', key .. ':sub:' .. h.group, 86400)
  redis.call('HSET', key, field(h, 'sub'), 'delayed', 'failedReason', reason)
  redis.call('HDEL', key, field(h, 'stalls'), field(h, 'suspect')) -- its worker survived this attempt
  redis.call('ZADD', h.prefix .. 'scheduled', h.now + backoff, job_id .. '||' .. h.group)
  acknowledge(h, entry_id, is_retry)
  L.events.emit(h.prefix .. 'events', 'retrying', job_id, 'failedReason', reason, 'attemptsMade', made, 'delay',
    L.numbers.text(backoff), 'subscription', h.group)
  L.broadcasts.settle(h, job_id, entry_id)
  return 'retrying'
end

-- Accepts an outcome of a message that this worker holds: done, fail, or pass (it is not for this subscription).
function L.handling.finish(h, o)
  if L.broadcasts.holder(h.stream, h.group, o.entry_id) ~= h.consumer then
    return 'stale'
  end
  local key = h.prefix .. 'job:' .. o.job_id
  if o.job_id == '' or redis.call('HEXISTS', key, 'state') == 0 then
    acknowledge(h, o.entry_id, false)
    return 'ok'
  end
  if o.kind == 'pass' then
    acknowledge(h, o.entry_id, false)
    if o.is_retry then
      local entry = redis.call('XRANGE', h.stream, o.entry_id, o.entry_id)[1]
      L.messages.drop_orphan(h, o.entry_id, o.job_id, entry and select(3, L.handling.read_entry(entry[2])))
    else
      redis.call('HSETNX', key, 'gmo:message', o.entry_id)
      L.broadcasts.settle(h, o.job_id, o.entry_id)
    end
    return 'ok'
  end
  local is_retry = is_retry_entry(key, o.entry_id)
  if o.kind == 'done' then
    return done(h, o.job_id, o.entry_id, o.text, is_retry)
  end
  return fail(h, o.job_id, o.entry_id, o.text, is_retry, o.allowed, o.backoff)
end

-- Makes this worker the holder of a held entry, idle since now. Users may lack the right to XCLAIM.
function L.handling.claim(h, entry_id)
  redis.call('XAUTOCLAIM', h.stream, h.group, h.consumer, 0, entry_id, 'COUNT', 1, 'JUSTID')
end

-- The first ARGS of the functions for workers of subscriptions: 1 now_ms  2 subscription  3 consumer
function L.handling.of(keys, args)
  return { prefix = L.hashes.prefix(keys[1], 'stream'), stream = keys[1], now = tonumber(args[1]), group = args[2],
    consumer = args[3] }
end

-- The job id of an entry, whether it is a retry of some subscription, and of which.
function L.handling.read_entry(fields)
  local found = {}
  for i = 1, #fields, 2 do
    found[fields[i]] = fields[i + 1]
  end
  return found.jobId, found.retryGroup ~= nil, found.retryGroup
end

L.handling.field = field
L.handling.fail_for_good = fail_for_good
