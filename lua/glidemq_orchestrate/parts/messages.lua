-- messages: removes, revokes or retries a message of a broadcast; see broadcasts.lua.
L.messages = {}
local SKEW, NEAR = 10, 1000

-- The id of the entry of a message; if none of our workers has begun it, searches its expected position.
local function entry_of(b, job_id)
  local v = redis.call('HMGET', b.prefix .. 'job:' .. job_id, 'gmo:message', 'timestamp')
  local entry_id = v[1] or nil
  if not entry_id then
    L.stream.each(b.stream, function(id, found)
      entry_id = found == job_id and id or nil
      return entry_id ~= nil
    end, NEAR, L.numbers.text(math.max(L.numbers.int(v[2], 0) - SKEW, 0)))
  end
  return entry_id
end

-- Whether a job is a message that a subscription has not ended. Node workers list it as completed when one has.
function L.messages.is_open(b, job_id)
  b.subs = b.subs or L.broadcasts.subscriptions(b.stream)
  if #b.subs == 0 then
    return false
  end
  for _, row in ipairs((L.broadcasts.states(b, job_id, entry_of(b, job_id)))) do
    if row[2] ~= 'completed' and row[2] ~= 'failed' then
      return true
    end
  end
  return false
end

-- Drops the entry of a message from the stream, whether it was handled or not. The message is removed after the runs
-- and retries that have begun.
function L.messages.drop(b, job_id, entry_id)
  local key = b.prefix .. 'job:' .. job_id
  redis.call('XDEL', b.stream, entry_id)
  local state = redis.call('HGET', key, 'state')
  if not state then
    return
  end
  for _, row in ipairs((L.broadcasts.states(b, job_id, entry_id))) do
    if row[2] == 'active' or row[2] == 'delayed' then
      redis.call('HSET', key, 'gmo:trimmed', '1')
      return
    end
  end
  L.broadcasts.unlist(b, job_id, entry_id)
  L.jobs.unlink(b.prefix, job_id)
  redis.call('ZREM', b.prefix .. 'completed', job_id)
  redis.call('ZREM', b.prefix .. 'failed', job_id)
end

-- Drops the retry of a removed subscription, which nobody handles; its message does not wait for it.
function L.messages.drop_orphan(b, entry_id, job_id, subscription)
  b.subs = b.subs or L.broadcasts.subscriptions(b.stream)
  for _, sub in ipairs(b.subs) do
    if sub.name == subscription then
      return
    end
  end
  redis.call('XDEL', b.stream, entry_id)
  L.broadcasts.settle(b, job_id)
end

-- Removes a deleted message from the stream and the schedule.
function L.messages.take_out(b, job_id)
  b.subs = b.subs or L.broadcasts.subscriptions(b.stream)
  if #b.subs > 0 then
    L.broadcasts.unlist(b, job_id, entry_of(b, job_id))
  end
end

-- Fails a revoked message in each subscription that has not begun it. Returns revoked, flagged (a worker holds it), or
-- nil when it is not a message, or was not delivered to any subscription yet.
function L.messages.revoke(b, job_id)
  b.subs = b.subs or L.broadcasts.subscriptions(b.stream)
  local key, word, entry_id = b.prefix .. 'job:' .. job_id, 'revoked', #b.subs > 0 and entry_of(b, job_id)
  if not entry_id then
    return nil
  end
  redis.call('HSET', key, 'gmo:message', entry_id)
  for _, row in ipairs((L.broadcasts.states(b, job_id, entry_id))) do
    if row[2] == 'active' then
      word = 'flagged'
    elseif row[2] == 'waiting' or row[2] == 'delayed' then
      redis.call('HSET', key, 'gmo:sub:' .. row[1], 'failed\n' .. L.numbers.text(b.now) .. '\nrevoked')
    end
  end
  L.broadcasts.unlist(b, job_id, entry_id)
  L.broadcasts.settle(b, job_id, entry_id)
  return word
end

-- Retries a message, from the first attempt, in the subscriptions in which it has failed, or only in the given one; the
-- others are not affected. Returns false when it has failed in none of them.
function L.messages.retry(b, job_id, only)
  local key, found = b.prefix .. 'job:' .. job_id, false
  if redis.call('HEXISTS', key, 'gmo:message') == 0 then
    return false
  end
  for _, row in ipairs((L.broadcasts.states(b, job_id))) do
    if row[2] == 'failed' and (not only or row[1] == only) then
      found = true
      redis.call('HSET', key, 'gmo:sub:' .. row[1], 'delayed')
      redis.call('ZADD', b.prefix .. 'scheduled', b.now, job_id .. '||' .. row[1])
    end
  end
  if found then
    redis.call('HSET', key, 'failedReason', '', 'finishedOn', '')
    redis.call('HDEL', key, 'revoked')
    L.broadcasts.settle(b, job_id)
  end
  return found
end

L.messages.entry_of = entry_of
