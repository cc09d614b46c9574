-- element_changes: single elements of an array that are ended by hand, or run again.
--   <prefix>gmo:array:<job id>:ended     set: elements that were ended by hand while they were listed for a worker (among
--                                        those given back, those to run again, or the new ones); they are passed over.
--                                        The field `ended` of the array has their number
--   <prefix>gmo:array:<job id>:changes   list: changes of an array that has ended, made when it opens again:
--                                        "<what> <element> <text>"
--   <prefix>gmo:array:<job id>:reasons   hash: element that was skipped by hand -> the reason
--   <prefix>gmo:array:<job id>:changed   hash: element -> token of the last request that changed it
-- What: `completed` (text: its result as JSON), `skipped`, `failed` (its reason), or `again`.
L.element_changes = {}
local text = L.numbers.text
local NO_RESULT, HOLD = 'null', 10000

-- How an element has ended, and its result or reason; nil if it has not.
function L.element_changes.end_of(a, element)
  local position = text(element)
  if redis.call('GETBIT', a.key .. ':done', position) == 1 then
    return 'completed', redis.call('HGET', a.key .. ':results', position) or NO_RESULT
  elseif redis.call('SISMEMBER', a.key .. ':skipped', position) == 1 then
    return 'skipped', redis.call('HGET', a.key .. ':reasons', position) or ''
  end
  local reason = redis.call('HGET', a.key .. ':failed:' .. a.run, position)
  if reason then
    return 'failed', reason
  end
end

-- The elements without those that were ended by hand.
function L.element_changes.pass_over(a, elements)
  local words, kept, passed = {}, {}, {}
  for i, element in ipairs(elements) do words[i] = text(element) end
  local marks = redis.call('SMISMEMBER', a.key .. ':ended', unpack(words))
  for i, element in ipairs(elements) do
    if marks[i] == 0 then kept[#kept + 1] = element else passed[#passed + 1] = words[i] end
  end
  if #passed > 0 then
    a.ended = math.max(a.ended - redis.call('SREM', a.key .. ':ended', unpack(passed)), 0)
    redis.call('HSET', a.key, 'ended', text(a.ended))
  end
  return kept
end

-- Takes an element from the slice that has it; false if none has. A worker that runs others of the slice goes on, and its
-- outcome of this one does not count; else it loses its lease.
local function take_from_slice(a, element)
  for _, slice_id in ipairs(redis.call('SMEMBERS', a.key .. ':slices')) do
    local key = a.prefix .. 'job:' .. slice_id
    local v = redis.call('HMGET', key, 'gmo:elements', 'gmo:ended')
    if v[1] and L.positions.contains(v[1], element) and not L.positions.contains(v[2] or '', element) then
      local ended = (v[2] and v[2] .. ',' or '') .. text(element)
      if L.positions.without(v[1], ended) == '' then
        L.slices.remove(a, slice_id)
      else
        redis.call('HSET', key, 'gmo:ended', ended)
      end
      return true
    end
  end
  return false
end

-- Takes an element that has not ended from where a worker could start it, and from a worker that runs it.
local function withdraw(a, element, now)
  if not L.element_jobs.take(a, element, now) and not take_from_slice(a, element) then
    a.ended = a.ended + redis.call('SADD', a.key .. ':ended', text(element))
  end
end

-- Removes the end of an element.
local function undo(a, element, was)
  local position = text(element)
  a[was] = a[was] - 1
  if was == 'completed' then
    redis.call('BITFIELD', a.key .. ':done', 'SET', 'u1', position, 0)
    redis.call('HDEL', a.key .. ':results', position)
  elseif was == 'skipped' then
    redis.call('SREM', a.key .. ':skipped', position)
    redis.call('HDEL', a.key .. ':reasons', position)
  else
    redis.call('HDEL', a.key .. ':failed:' .. a.run, position)
  end
end

-- Lists an element that has no end any more, unless it still is.
local function list_again(a, element, now)
  local position = text(element)
  redis.call('HDEL', a.key .. ':attempts', position)
  redis.call('HDEL', a.key .. ':lost', position)
  if redis.call('SREM', a.key .. ':ended', position) == 1 then
    a.ended = a.ended - 1
  else
    L.slices.list_again(a, position, now)
  end
end

local function set_end(a, element, what, value)
  local position = text(element)
  a[what] = a[what] + 1
  if what == 'completed' then
    redis.call('BITFIELD', a.key .. ':done', 'SET', 'u1', position, 1)
    if value ~= NO_RESULT then redis.call('HSET', a.key .. ':results', position, value) end
    redis.call('HDEL', a.key .. ':attempts', position)
  elseif what == 'skipped' then
    redis.call('SADD', a.key .. ':skipped', position)
    redis.call('HSET', a.key .. ':reasons', position, value)
  else
    redis.call('HSET', a.key .. ':failed:' .. a.run, position, value)
  end
end

-- Whether a change would change an element, and how that has ended; one that has failed, or was skipped, keeps its reason.
function L.element_changes.changes(a, element, what, value)
  local was, old = L.element_changes.end_of(a, element)
  if what == 'again' then
    return was ~= nil, was
  elseif what == 'failed' then
    return was == nil, was
  end
  return was ~= what or (what == 'completed' and old ~= value), was
end

-- Changes elements: a list of {element, what, value}. Returns whether some have ended by that; the array does not end here.
function L.element_changes.apply(a, changes, now)
  local have_ended = false
  for _, change in ipairs(changes) do
    local element, what, value = unpack(change)
    local is_change, was = L.element_changes.changes(a, element, what, value)
    if is_change then
      if was then undo(a, element, was) else withdraw(a, element, now) end
      if what == 'again' then list_again(a, element, now) else set_end(a, element, what, value) end
      have_ended = have_ended or what ~= 'again'
    end
  end
  redis.call('HSET', a.key, 'completed', text(a.completed), 'failed', text(a.failed), 'skipped', text(a.skipped), 'ended',
    text(a.ended))
  return have_ended
end

-- Notes changes of an array that has ended, for when it opens again.
function L.element_changes.note(a, changes)
  for _, change in ipairs(changes) do
    redis.call('RPUSH', a.key .. ':changes', change[2] .. ' ' .. text(change[1]) .. ' ' .. change[3])
  end
end

-- Makes the noted changes of an array that is about to open again; false if there are none.
function L.element_changes.apply_noted(a, now)
  local changes = {}
  for i, noted in ipairs(redis.call('LRANGE', a.key .. ':changes', 0, -1)) do
    local what, element, value = noted:match('^(%a+) (%d+) (.*)$')
    changes[i] = { tonumber(element), what, value }
  end
  if #changes == 0 then
    return false
  end
  redis.call('UNLINK', a.key .. ':changes')
  L.element_changes.apply(a, changes, now)
  return true
end

-- Holds the end of an array back while a request changes more of its elements, or lets it end.
function L.element_changes.hold(a, now, has_more)
  if has_more then
    a.holds = now + HOLD
    redis.call('HSET', a.key, 'holds', text(a.holds))
  elseif a.holds > 0 then
    a.holds = 0
    redis.call('HDEL', a.key, 'holds')
  end
end

-- Ends an open array whose end was held back by a client that has died since.
function L.element_changes.end_held(a, now)
  if a.holds == 0 or a.holds > now then
    return false
  end
  L.element_changes.hold(a, now, false)
  return L.element_changes.end_if_done(a, now)
end

-- Ends an open array if all of its elements have ended, or too many have failed; by a change, not by the report of a worker.
function L.element_changes.end_if_done(a, now)
  local x = { now = now, flows = {} }
  if not L.array_ends.end_if_done(x, a) then
    return false
  end
  local flow = L.record.of_job(a.prefix, a.id)
  if flow and x.flows[1] ~= '' then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
  end
  return true
end
