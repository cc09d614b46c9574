-- array_ends: the progress of an array, and its end after its elements have ended. Part of arrays.lua.
L.array_ends = {}
local TOLD = 1000

-- The counts of an array, as progress and result.
local function summary(a)
  return cjson.encode { elements = a.size, completed = a.completed, failed = a.failed, skipped = a.skipped }
end

-- Whether all elements that have not ended run: the next one may end long after this one.
local function is_last_round(a)
  return a.next >= a.size and a.oldest >= a.run and redis.call('ZCARD', a.key .. ':again') == 0
end

-- Writes the progress of an array, at most once a second until its last elements run.
function L.array_ends.tell(a, now)
  if now - a.told >= TOLD or now < a.told or is_last_round(a) then
    redis.call('HSET', a.key, 'told', L.numbers.text(now))
    redis.call('HSET', a.prefix .. 'job:' .. a.id, 'progress', summary(a), 'lastActive', L.numbers.text(now))
    L.events.emit(a.prefix .. 'events', 'progress', a.id, 'data', summary(a))
  end
end

local function reason_of(a)
  local first = redis.call('HRANDFIELD', a.key .. ':failed:' .. a.run, 1, 'WITHVALUES')
  local text = L.numbers.text(a.failed) .. ' of ' .. L.numbers.text(a.size) .. ' elements failed'
  if a.max_failed >= 0 then
    text = text .. ', more than the ' .. L.numbers.text(a.max_failed) .. ' that may'
  end
  return text .. '; element ' .. (first[1] or '?') .. ': ' .. (first[2] or '')
end

-- Ends an array as skipped, as all its elements were.
local function skip(x, a, key)
  local reason = 'all ' .. L.numbers.text(a.size) .. ' elements were skipped'
  redis.call('HSET', key, 'state', 'completed', 'returnvalue', 'null', 'gmo:skipped', reason, 'finishedOn',
    L.numbers.text(x.now))
  L.events.emit(a.prefix .. 'events', 'completed', a.id, 'returnvalue', 'null', 'skipped', reason)
  x.flows[#x.flows + 1] = L.settle.job_skipped(L.record.of_job(a.prefix, a.id), a.prefix, a.id, reason, x.now)
end

-- Whether the array has ended, after elements of it have; then its node is settled. Adds ids of flows that need
-- gmo_advance_flow.
function L.array_ends.end_if_done(x, a)
  if a.holds > x.now then
    return false
  end
  local has_too_many = a.max_failed >= 0 and a.failed > a.max_failed
  if not has_too_many and a.completed + a.failed + a.skipped < a.size then
    return false
  end
  local key = a.prefix .. 'job:' .. a.id
  if x.listed then L.gathered.flush(x) end
  L.arrays.close(a.prefix, a.id, x.now)
  redis.call('HSET', key, 'progress', summary(a))
  if has_too_many or (a.max_failed < 0 and a.failed > 0) then
    local reason = reason_of(a)
    L.jobs.set_failed(a.prefix, a.id, reason, x.now)
    L.events.emit(a.prefix .. 'events', 'failed', a.id, 'failedReason', reason)
    L.dead_letters.note(a.prefix, a.id, x.now)
    x.flows[#x.flows + 1] = L.settle.job_failed(a.prefix, a.id, reason, x.now)
    return true
  end
  redis.call('ZADD', a.prefix .. 'completed', x.now, a.id)
  if a.skipped == a.size then
    skip(x, a, key)
    return true
  end
  redis.call('HSET', key, 'state', 'completed', 'returnvalue', summary(a), 'finishedOn', L.numbers.text(x.now))
  L.events.emit(a.prefix .. 'events', 'completed', a.id, 'returnvalue', summary(a))
  x.flows[#x.flows + 1] = L.settle.job_completed(L.record.of_job(a.prefix, a.id), a.prefix, a.id, x.now)
  return true
end
