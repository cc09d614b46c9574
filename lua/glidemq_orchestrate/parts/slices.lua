-- slices: elements of an array that a worker runs under one lease. A slice is an active job of its own, with the id
-- "<job id of the array>{<number>}" and the fields gmo:slice (job id of the array) and gmo:elements, a text like
-- "0-63" or "3,7-9"; it is listed in <prefix>gmo:list-held. The field gmo:ended has those of them that were
-- ended by hand. One outcome ends it, see outcome.lua: a line for each of its first elements, in order; the others are
-- given back. Lines:
--   d<result JSON, '' = null>   s<reason>   l<ms since the epoch> (run it later)
--   a<item JSON>   after a line `d`: that element adds one with this item at the end of its array
--   k   last: the next element goes on under this lease, and only those after it are given back; see kept_elements.lua
--   f<attempts allowed> <backoff, ms> <reason>
-- In a reason, line ends are replaced by spaces.
L.slices = {}
local MAX = 100
-- A call leases slices until their costs reach BUDGET: COST for each, and for each element 1, or LARGE if its item has a
-- chunk of its own.
local BUDGET, COST, LARGE, PAGE, PASSES = 1000, 20, 100, 500, 50
local int, text = L.numbers.int, L.numbers.text
local split, join = L.positions.split, L.positions.join

-- The next elements to run, at most `count`: those given back, those that failed in earlier runs, new ones. The second
-- result is the number of losses that the only element may have caused.
local function take_next(a, count, now)
  local has_lost = redis.call('EXISTS', a.key .. ':lost') == 1
  local due = redis.call('ZRANGEBYSCORE', a.key .. ':again', '-inf', now, 'WITHSCORES', 'LIMIT', 0, has_lost and 1 or count)
  local found = {}
  for i = 1, #due, 2 do
    local some, rest = split(due[i], has_lost and 1 or count - #found)
    if #some > 0 then
      redis.call('ZREM', a.key .. ':again', due[i])
      if rest ~= '' then redis.call('ZADD', a.key .. ':again', due[i + 1], rest) end
    end
    for _, element in ipairs(some) do found[#found + 1] = element end
  end
  if #found > 0 then
    table.sort(found)
    local lost = has_lost and redis.call('HGET', a.key .. ':lost', text(found[1]))
    return found, lost and text(int(lost, 0) + 1) or nil
  end
  while a.oldest < a.run do
    local older = a.key .. ':failed:' .. a.oldest
    local page = redis.call('HRANDFIELD', older, count)
    if #page > 0 then
      redis.call('HDEL', older, unpack(page))
      redis.call('HDEL', a.key .. ':attempts', unpack(page))
      for i, element in ipairs(page) do found[i] = tonumber(element) end
      table.sort(found)
      return found
    end
    a.oldest = a.oldest + 1
    redis.call('HSET', a.key, 'oldest', a.oldest)
  end
  for element = a.next, math.min(a.next + count, a.size) - 1 do found[#found + 1] = element end
  a.next = a.next + #found
  redis.call('HSET', a.key, 'next', text(a.next))
  return found
end

-- The same without elements that were ended by hand, which are passed over.
local function next_elements(a, count, now)
  local found, suspect = take_next(a, count, now)
  for _ = 1, a.ended > 0 and PASSES or 0 do
    if #found == 0 then break end
    found = L.element_changes.pass_over(a, found)
    if #found > 0 then break end
    found, suspect = take_next(a, count, now)
  end
  return found, suspect
end

-- What an element of this array counts for the budget of a call: more if its item is large.
local function cost_of(a)
  return a.per > 0 and LARGE / a.per or 1
end

-- Leases a slice of an array to the worker; nil if there is none. `v`: the fields of the array's job, see fetch.lua.
local function lease(x, a, v, size, ahead)
  local count = math.min(math.max(math.abs(size), 1), MAX, math.max(math.floor(BUDGET / cost_of(a) / 10), 1))
  if a.max_running > 0 then
    if a.running >= a.max_running then return nil end
    if size < 0 then count = math.min(count, a.max_running - a.running) end
  end
  local elements, suspect = next_elements(a, count, x.now)
  if #elements == 0 then
    return nil
  end
  if suspect and x.starts then ahead = '+' end -- its worker reports it first
  local weight = size < 0 and #elements or 1
  local numbers = redis.call('HMGET', a.key, 'leases', 'epoch')
  local number, epoch = int(numbers[1], 0) + 1, L.lease.next_epoch(x, numbers[2])
  a.running = a.running + weight
  redis.call('HSET', a.key, 'leases', number, 'epoch', epoch, 'running', a.running)
  local id, joined = a.id .. '{' .. number .. '}', join(elements)
  redis.call('HSET', x.prefix .. 'job:' .. id, 'id', id, 'name', v[1], 'opts', v[3], 'timestamp', x.now_text, 'attemptsMade',
    '0', 'state', 'active', 'processedOn', x.now_text, 'lastActive', x.now_text, 'gmo:token', x.token .. ahead, 'gmo:entry',
    '', 'gmo:epoch', epoch, 'gmo:slice', a.id, 'gmo:elements', joined, 'gmo:weight', weight)
  if suspect then
    redis.call('HSET', x.prefix .. 'job:' .. id, 'gmo:suspect', suspect)
  end
  redis.call('HSETNX', x.prefix .. 'job:' .. a.id, 'processedOn', x.now_text)
  redis.call('SADD', a.key .. ':slices', id)
  redis.call('ZADD', x.prefix .. 'gmo:list-held', x.now, id)
  x.leased = (x.leased or 0) + COST + #elements * cost_of(a)
  return { id = id, started = x.now_text, epoch = epoch, suspect = suspect, ahead = ahead,
    about = L.slice_items.about(a, elements, joined) }
end

-- Adds the row of a slice of an array. `v`: the fields of the array's job; `given`: its inputs.
local function add_row(x, slice, v, given)
  local shown = L.fetch.SHOWN
  local row = { slice.id, '', slice.started, unpack(v, 1, shown) }
  row[shown + 4], row[shown + 5], row[shown + 6] = given, slice.epoch, slice.suspect
  row[shown + 7], row[shown + 8] = slice.ahead, slice.about
  for i = 1, shown + 8 do row[i] = row[i] or false end
  x.jobs[#x.jobs + 1] = row
end

-- The array of a slice; nil if another client has removed it: then the slice is removed too.
function L.slices.array(prefix, slice_id, array_id)
  local a = L.arrays.read(prefix, array_id)
  if not a then
    redis.call('UNLINK', prefix .. 'job:' .. slice_id)
    redis.call('ZREM', prefix .. 'gmo:list-held', slice_id)
  end
  return a
end

-- Adds the row of a leased slice again: its reply was lost.
function L.slices.again(x, slice_id, token, suspect, started, epoch)
  local of = redis.call('HMGET', x.prefix .. 'job:' .. slice_id, 'gmo:slice', 'gmo:elements')
  local a, v = L.slices.array(x.prefix, slice_id, of[1]), L.fetch.read(x.prefix .. 'job:' .. of[1])
  if not a then
    return
  end
  local slice = { id = slice_id, started = started, epoch = epoch, suspect = suspect or nil,
    ahead = token:sub(-1) == '+' and '+' or '', about = L.slice_items.about(a, (split(of[2], MAX)), of[2]) }
  add_row(x, slice, v, L.inputs.read(x.prefix, of[1]))
end

-- Takes all slices of an array from their workers, with few commands for each; their elements may run again.
function L.slices.take_all(a)
  local ids = redis.call('SMEMBERS', a.key .. ':slices')
  for first = 1, #ids, PAGE do
    local keys, back, page = {}, {}, { unpack(ids, first, math.min(first + PAGE - 1, #ids)) }
    for i, id in ipairs(page) do
      keys[i] = a.prefix .. 'job:' .. id
      local v = redis.call('HMGET', keys[i], 'gmo:elements', 'gmo:ended')
      local elements = v[1] and L.positions.without(v[1], v[2]) or ''
      if elements ~= '' then back[#back + 1], back[#back + 2] = '0', elements end
    end
    redis.call('UNLINK', unpack(keys))
    redis.call('ZREM', a.prefix .. 'gmo:list-held', unpack(page))
    if #back > 0 then redis.call('ZADD', a.key .. ':again', unpack(back)) end
  end
  redis.call('UNLINK', a.key .. ':slices')
  redis.call('HSET', a.key, 'running', 0)
end

-- Removes a slice; returns its elements, and those of them that were ended by hand (nil = none).
local function remove(a, slice_id)
  local key = a.prefix .. 'job:' .. slice_id
  local v = redis.call('HMGET', key, 'gmo:elements', 'gmo:weight', 'gmo:ended')
  redis.call('UNLINK', key)
  redis.call('ZREM', a.prefix .. 'gmo:list-held', slice_id)
  redis.call('SREM', a.key .. ':slices', slice_id)
  a.running = math.max(a.running - int(v[2], 1), 0)
  redis.call('HSET', a.key, 'running', a.running)
  return v[1] or '', v[3] or nil
end

-- Lists elements, a text, to run from `due` on.
function L.slices.list_again(a, elements, due)
  if elements ~= '' then
    redis.call('ZADD', a.key .. ':again', text(due), elements)
  end
end

-- Ends a slice without outcomes: its elements may run from `due` on.
function L.slices.give_back(a, slice_id, due)
  L.slices.list_again(a, L.positions.without(remove(a, slice_id)), due)
end

L.slices.lease, L.slices.add_row, L.slices.remove, L.slices.MAX, L.slices.BUDGET = lease, add_row, remove, MAX, BUDGET
L.slices.next_elements = next_elements
