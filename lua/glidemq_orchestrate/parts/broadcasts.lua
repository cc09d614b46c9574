-- broadcasts: messages that every subscription of a queue handles. A subscription is a consumer group of the stream,
-- other than the workers' group. glide-mq has one state for all of them, written by the last one; here each has its
-- own, and the message ends when all have ended it.
-- A message is a job with these additional fields, where SUB is a subscription:
--   gmo:message        the id of its entry, for all subscriptions
--   gmo:sub:SUB        "active\n<id of the entry>" (a worker has begun it; with "\nlost" it was lost), delayed (for its
--                      next attempt), or "failed\n<when, ms>\n<reason>"; absent: it waits, is held by a worker, or is handled
--   gmo:tries:SUB      how often it has failed, until it ends; glide-mq's counter expires after a day
--   gmo:stalls:SUB     how many losses of its worker counted against it; gmo:suspect:SUB: how many losses it may have
--                      caused. Both are removed when an attempt ends
-- The group shows whether an absent one is handled: by its last entry, and the entries that its workers hold.
-- The retry of one subscription is an entry with `retryGroup`, which is deleted when it is handled.
L.broadcasts = {}
local WORKERS, FAILED = 'workers', '^failed\n'

-- The two numbers of an entry id.
local function parts(entry_id)
  local ms, seq = string.match(entry_id or '', '^(%d+)-(%d+)$')
  return tonumber(ms) or 0, tonumber(seq) or 0
end

local function is_after(one, other)
  local ms, seq = parts(one)
  local other_ms, other_seq = parts(other)
  return ms > other_ms or ms == other_ms and seq > other_seq
end

-- The subscriptions of a stream: {{name, id of its last delivered entry}}; none without a stream.
function L.broadcasts.subscriptions(stream)
  local groups, found = redis.pcall('XINFO', 'GROUPS', stream), {}
  for _, fields in ipairs(groups.err and {} or groups) do
    local info = {}
    for i = 1, #fields, 2 do
      info[fields[i]] = fields[i + 1]
    end
    if info.name ~= WORKERS then
      found[#found + 1] = { name = info.name, last = info['last-delivered-id'] }
    end
  end
  return found
end

-- The worker of a subscription that holds an entry, or nil.
function L.broadcasts.holder(stream, group, entry_id)
  local held = redis.pcall('XPENDING', stream, group, entry_id, entry_id, 1)
  return not held.err and held[1] and held[1][2] or nil
end

-- The state of a message in one subscription: waiting, active, delayed, failed or completed; and the reason of a failure.
-- `whole`: the state of a message without an entry, delivered to no subscription: it is delayed, or ended before.
local function state_in(b, sub, entry_id, is_there, noted, whole)
  local begun = noted and noted:match('^active\n([^\n]*)')
  if begun then -- a Node worker of the subscription may have ended it
    return L.broadcasts.holder(b.stream, sub.name, begun) and 'active' or 'completed'
  elseif noted == 'delayed' then
    return noted
  elseif noted and noted:find(FAILED) then
    return 'failed', noted:match('^failed\n%d+\n(.*)$') or ''
  elseif not entry_id then
    return unpack(whole)
  elseif is_after(entry_id, sub.last) then
    return is_there and 'waiting' or 'completed' -- trimmed before it was read: it never will be
  end
  return L.broadcasts.holder(b.stream, sub.name, entry_id) and 'active' or 'completed'
end

-- The states of a message in all subscriptions: {{name, state, reason}}. `entry_id`: if known.
function L.broadcasts.states(b, job_id, entry_id)
  local key, fields, found = b.prefix .. 'job:' .. job_id, { 'gmo:message', 'state', 'failedReason' }, {}
  b.subs = b.subs or L.broadcasts.subscriptions(b.stream)
  for i, sub in ipairs(b.subs) do
    fields[i + 3] = 'gmo:sub:' .. sub.name
  end
  local v = redis.call('HMGET', key, unpack(fields))
  entry_id = v[1] or entry_id
  local is_there = entry_id and #redis.call('XRANGE', b.stream, entry_id, entry_id) > 0
  local whole = { v[2] == 'delayed' and 'delayed' or v[2] == 'failed' and 'failed' or 'completed', v[2] == 'failed' and v[3] or nil }
  for i, sub in ipairs(b.subs) do
    local state, reason = state_in(b, sub, entry_id, is_there, v[i + 3], whole)
    found[i] = { sub.name, state, reason }
  end
  return found, entry_id
end

-- Removes the retries of a message that no worker has begun, and its remains in the stream.
local function unlist(b, job_id, entry_id)
  if entry_id then
    redis.call('XDEL', b.stream, entry_id)
  end
  for _, sub in ipairs(b.subs or L.broadcasts.subscriptions(b.stream)) do
    redis.call('ZREM', b.prefix .. 'scheduled', job_id .. '||' .. sub.name)
    redis.call('UNLINK', b.prefix .. 'job:' .. job_id .. ':sub:' .. sub.name)
  end
end

-- Mode, count and age (s) of the retention in the options of a message.
local function retention(opts, state)
  local is_json, options = pcall(cjson.decode, opts or '')
  local wish = is_json and type(options) == 'table' and options[state == 'failed' and 'removeOnFail' or 'removeOnComplete']
  if wish == true then
    return 'true', 0, 0
  elseif type(wish) == 'number' then
    return 'count', wish, 0
  elseif type(wish) == 'table' then
    return 'age_count', L.numbers.int(tostring(wish.count), 0), L.numbers.int(tostring(wish.age), 0)
  end
  return '0', 0, 0
end

-- The message has ended. With a retention it leaves the stream: later subscribers do not get it.
local function close(b, job_id, entry_id, state, reason)
  local key, now = b.prefix .. 'job:' .. job_id, b.now
  local v = redis.call('HMGET', key, 'opts', 'state', 'gmo:trimmed')
  local mode, count, age = retention(v[1], state)
  if v[2] == state and not v[3] and mode == '0' then
    return
  end
  redis.call('ZREM', b.prefix .. (state == 'failed' and 'completed' or 'failed'), job_id)
  redis.call('ZADD', b.prefix .. state, now, job_id)
  redis.call('HSET', key, 'state', state, 'finishedOn', L.numbers.text(now), 'failedReason', reason or '')
  if v[3] then -- it was dropped from the stream while it was handled
    unlist(b, job_id, entry_id)
    L.jobs.unlink(b.prefix, job_id)
    redis.call('ZREM', b.prefix .. state, job_id)
  elseif mode ~= '0' then
    unlist(b, job_id, entry_id)
    L.keeping.apply(b.prefix, state, job_id, mode, count, age, now)
  end
end

local STATES = { 'active', 'delayed', 'waiting' }

-- Gives the message the state that follows from those of its subscriptions. b: prefix stream now; caches the
-- subscriptions, which must not change in the meantime.
function L.broadcasts.settle(b, job_id, entry_id)
  local key, has, reason = b.prefix .. 'job:' .. job_id, {}, nil
  local stored = redis.call('HMGET', key, 'state', 'id')
  if not stored[1] then
    return
  end
  local states
  states, entry_id = L.broadcasts.states(b, job_id, entry_id)
  for _, row in ipairs(states) do
    has[row[2]] = true
    reason = reason or row[3] and row[1] .. ': ' .. row[3]
  end
  for _, state in ipairs(STATES) do
    if has[state] then
      if stored[1] ~= state then
        redis.call('HSET', key, 'state', state)
        redis.call('ZREM', b.prefix .. 'completed', job_id)
        redis.call('ZREM', b.prefix .. 'failed', job_id)
      end
      return
    end
  end
  if #states > 0 then
    close(b, job_id, entry_id, has.failed and 'failed' or 'completed', reason)
  end
end

L.broadcasts.unlist = unlist
