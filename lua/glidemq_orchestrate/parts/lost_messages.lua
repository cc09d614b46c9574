-- lost_messages: messages that a worker of a subscription had begun when it was lost. The rule is that of losses.lua:
-- among several the cause is unknown, and all become suspects; if one was a suspect before, only that one is charged; a
-- worker runs one suspect at a time. h: see handling.lua, and lock_ms, most (how often a message may stall), lost (by
-- worker).
L.lost_messages = {}
local STALLED, PENDING = 'job stalled more than maxStalledCount', 1000

-- The messages that a worker had begun and has not renewed, and how many of them are suspects; nil while it has renewed
-- others: those begun after the last renewal lapse a moment later, and are judged together.
local function begun_by(h, consumer)
  local found, suspects, oldest, is_partial = {}, 0, 0, false
  local lock_ms = L.lease.duration(consumer, h.lock_ms)
  for _, row in ipairs(redis.call('XPENDING', h.stream, h.group, '-', '+', PENDING, consumer)) do
    local entry = row[3] >= lock_ms and redis.call('XRANGE', h.stream, row[1], row[1])[1]
    oldest, is_partial = math.max(oldest, row[3]), is_partial or row[3] < lock_ms
    local job_id, is_retry
    if entry then
      job_id, is_retry = L.handling.read_entry(entry[2])
    end
    local v = job_id and redis.pcall('HMGET', h.prefix .. 'job:' .. job_id, L.handling.field(h, 'sub'),
      L.handling.field(h, 'suspect'))
    if v and not v.err and v[1] == 'active\n' .. row[1] then
      local suspect = L.numbers.int(v[2], 0)
      found[#found + 1] = { id = job_id, entry = row[1], is_retry = is_retry, suspect = suspect, has_begun = true }
      suspects = suspects + (suspect > 0 and 1 or 0)
    end
  end
  if is_partial and oldest < 2 * lock_ms then
    return nil
  end
  return found, suspects
end

-- Counts the loss against one message. A message to be retried keeps its worker until another one takes it over.
local function charge(h, message, charged)
  local key, field = h.prefix .. 'job:' .. message.id, L.handling.field
  L.hashes.add(key, field(h, 'suspect'), 1)
  if charged and L.hashes.add(key, field(h, 'stalls'), 1) > h.most then
    return L.handling.fail_for_good(h, message.id, message.entry, STALLED, message.is_retry, true)
  end
  redis.call('HSET', key, field(h, 'sub'), 'active\n' .. message.entry .. '\nlost')
  L.events.emit(h.prefix .. 'events', 'stalled', message.id, 'subscription', h.group)
end

-- Counts the loss of a worker, once. Returns whether its messages may be taken over.
function L.lost_messages.judge(h, consumer)
  if h.lost[consumer] == nil then
    local begun, suspects = begun_by(h, consumer)
    for _, message in ipairs(begun or {}) do
      pcall(charge, h, message, L.losses.is_charged({ suspects = suspects }, message))
    end
    h.lost[consumer] = begun ~= nil
  end
  return h.lost[consumer]
end

-- Takes a message over from a lost worker, unless it is a suspect and this worker may not begin one. Returns as `begin`.
function L.lost_messages.take_over(h, job_id, entry_id, is_retry)
  local suspect = L.numbers.int(redis.call('HGET', h.prefix .. 'job:' .. job_id, L.handling.field(h, 'suspect')), 0)
  if (suspect > 0 and not h.takes_suspect) or not L.broadcasts.holder(h.stream, h.group, entry_id) then
    return nil
  end
  h.takes_suspect = h.takes_suspect and suspect == 0
  L.handling.claim(h, entry_id)
  return L.handling.begin(h, job_id, entry_id, is_retry)
end
