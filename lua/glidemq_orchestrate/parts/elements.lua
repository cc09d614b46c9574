-- elements: the ends of elements of an array, as the outcome of a slice reports them; see slices.lua.
L.elements = {}
local COST, RUN, MAX, ENDED = 10, 32, 100000000, 'ended'
local int, text = L.numbers.int, L.numbers.text

-- How many attempts of each element have failed, by position.
local function read_attempts(a, elements)
  local words, counts = {}, {}
  for i, element in ipairs(elements) do words[i] = text(element) end
  local found = redis.call('HMGET', a.key .. ':attempts', unpack(words))
  for i, element in ipairs(elements) do counts[element] = int(found[i], 0) end
  return counts
end

-- Adds the outcome of an element to the writes in w; returns its verdict.
local function note(x, a, w, position, line)
  local kind, rest, element = line:sub(1, 1), line:sub(2), text(position)
  if kind == 'd' then
    w.done[#w.done + 1] = position
    if rest ~= '' then w.results[#w.results + 1], w.results[#w.results + 2] = element, rest end
    w.well[#w.well + 1] = element
    return 'ok'
  elseif kind == 's' then
    w.skipped[#w.skipped + 1], w.well[#w.well + 1] = element, element
    return 'ok'
  elseif kind == 'l' then
    w.again[#w.again + 1], w.again[#w.again + 2] = text(int(rest, x.now)), element
    return 'ok'
  end
  local allowed, backoff, reason = rest:match('^(%d+) (%d+) (.*)$')
  w.counts = w.counts or read_attempts(a, w.elements)
  local made = w.counts[position] + 1
  w.tried[#w.tried + 1], w.tried[#w.tried + 2] = element, text(made)
  if made < (tonumber(allowed) or 0) then
    w.again[#w.again + 1], w.again[#w.again + 2] = text(x.now + tonumber(backoff)), element
    return 'retrying'
  end
  w.failed[#w.failed + 1], w.failed[#w.failed + 2] = element, reason or rest
  return 'failed'
end

local function no_writes(elements)
  return { elements = elements, done = {}, results = {}, skipped = {}, failed = {}, well = {}, tried = {}, again = {} }
end

-- Sets the bits of completed elements: those of a run together.
local function write_bits(key, done)
  local words, first = {}, 1
  for i = 1, #done do
    local length = i - first + 1
    if done[i + 1] ~= done[i] + 1 or length == RUN then
      words[#words + 1], words[#words + 2], words[#words + 3], words[#words + 4] = 'SET', 'u' .. length, text(done[first]),
        text(2 ^ length - 1)
      first = i + 1
    end
  end
  redis.call('BITFIELD', key, unpack(words))
end

-- Writes what was noted, and counts it.
local function write(a, w)
  if #w.done > 0 then write_bits(a.key .. ':done', w.done) end
  if #w.results > 0 then redis.call('HSET', a.key .. ':results', unpack(w.results)) end
  if #w.skipped > 0 then redis.call('SADD', a.key .. ':skipped', unpack(w.skipped)) end
  if #w.tried > 0 then redis.call('HSET', a.key .. ':attempts', unpack(w.tried)) end
  if #w.again > 0 then redis.call('ZADD', a.key .. ':again', unpack(w.again)) end
  if #w.failed > 0 then redis.call('HSET', a.key .. ':failed:' .. a.run, unpack(w.failed)) end
  a.completed, a.skipped = a.completed + #w.done, a.skipped + #w.skipped
  a.failed = a.failed + #w.failed / 2
  redis.call('HSET', a.key, 'completed', text(a.completed), 'failed', text(a.failed), 'skipped', text(a.skipped),
    'begun', 1)
  if #w.well > 0 and redis.call('EXISTS', a.key .. ':attempts') == 1 then
    redis.call('HDEL', a.key .. ':attempts', unpack(w.well))
  end
  if redis.call('EXISTS', a.key .. ':lost') == 1 then -- none of these has caused the loss of a worker
    for _, list in ipairs({ w.well, w.tried }) do
      for i = 1, #list, list == w.tried and 2 or 1 do redis.call('HDEL', a.key .. ':lost', list[i]) end
    end
  end
end

-- The items of the lines 'a' that follow the line of an element, by the number of that line, and the other lines.
local function split_lines(lines)
  local own, items = {}, {}
  for line in L.positions.lines(lines) do
    if line:sub(1, 1) ~= 'a' then
      own[#own + 1] = line
    elseif items[#own] then
      items[#own][#items[#own] + 1] = line:sub(2)
    else
      items[#own] = { line:sub(2) }
    end
  end
  return own, items
end

-- The line of an element, unless its array would become too large.
local function checked(a, added, line)
  return a.size + added > MAX and 'f0 0 its array would have more than ' .. text(MAX) .. ' elements' or line
end

-- Accepts the outcome of a slice: of each element for which it has a line; the others are given back, or one is kept.
local function accept_lines(x, a, slice_id, lines, first)
  local own, items = split_lines(lines)
  local elements, known, ended = L.kept_elements.take(x, a, slice_id, own, first)
  if not elements then return known end
  local w, verdicts, count, has_failures, added = no_writes(elements), {}, 0, false, {}
  for _, line in ipairs(own) do
    if count == #elements then break end
    count = count + 1
    local more = items[count] or {}
    if ended and L.positions.contains(ended, elements[count]) then
      verdicts[count], line = ENDED, ''
    else
      line = checked(a, #added + #more, line)
      verdicts[count] = note(x, a, w, elements[count], line)
    end
    has_failures = has_failures or verdicts[count] ~= 'ok'
    for _, item in ipairs(line:sub(1, 1) == 'd' and more or {}) do added[#added + 1] = item end
  end
  write(a, w)
  if #added > 0 then L.slice_items.append(a, added) end
  if count < #elements then L.kept_elements.give_back(x, a, elements, ended, count + 1, #elements) end
  x.spent = x.spent + math.floor((count + #added) / 2)
  local verdict = has_failures and table.concat(verdicts, '\n') or 'ok'
  if has_failures then L.kept_elements.note(a, slice_id, verdict) end
  return verdict
end

-- Notes the end of an element that is part of no slice, and the items that it adds.
function L.elements.note_one(x, a, element, line, items)
  local w = no_writes({ element })
  line = checked(a, #items, line)
  note(x, a, w, element, line)
  write(a, w)
  if #items > 0 and line:sub(1, 1) == 'd' then L.slice_items.append(a, items) end
end

-- Every element of the slice has the same outcome.
local function repeated(a, slice_id, line)
  local elements = L.positions.split(redis.call('HGET', a.prefix .. 'job:' .. slice_id, 'gmo:elements'), L.slices.MAX)
  return string.rep(line .. '\n', #elements)
end

-- Accepts the outcome of a slice that its worker still holds. Returns the verdict: `ok`, or that of each element, a
-- line each; `ended`: it was ended by hand, and its outcome does not count.
function L.elements.accept(x, o, array_id)
  local a, verdict = L.slices.array(x.prefix, o.job_id, array_id), 'ok'
  if not a then
    return 'stale the array ' .. array_id .. ' was removed'
  elseif o.kind == 'elements' then
    verdict = accept_lines(x, a, o.job_id, o.text, o.first)
  elseif o.kind == 'fail' then
    local reason = o.text:gsub('[\r\n]+', ' ')
    local line = 'f' .. text(o.first) .. ' ' .. text(o.second) .. ' ' .. reason
    verdict = accept_lines(x, a, o.job_id, repeated(a, o.job_id, line), 0)
  elseif o.kind == 'later' or o.kind == 'back' then
    L.slices.give_back(a, o.job_id, o.kind == 'later' and math.max(o.first, x.now) or x.now)
  else
    return 'stale an element of an array cannot end with the outcome ' .. o.kind
  end
  x.spent = x.spent + COST
  if not L.array_ends.end_if_done(x, a) then
    L.arrays.place(a, x.now, false, x.fetches)
    L.array_ends.tell(a, x.now)
  end
  return verdict
end

-- Takes a slice from a lost worker. Of several elements, each runs alone from now on, as any of them may have caused the
-- loss. One that ran alone fails after the last allowed loss, if that is charged to it; see losses.lua. Adds ids of flows
-- that need gmo_advance_flow.
function L.elements.lost(r, slice_id, array_id, has_begun, is_charged)
  local a = L.slices.array(r.prefix, slice_id, array_id)
  if not a then
    return
  end
  local elements = L.positions.split(L.positions.without(L.slices.remove(a, slice_id)), L.slices.MAX)
  local only = #elements == 1 and text(elements[1])
  local x = { now = r.now, flows = {} }
  if has_begun then redis.call('HSET', a.key, 'begun', 1) end
  local losses = only and has_begun and redis.call('HINCRBY', a.key .. ':lost', only, 1) or 0
  if is_charged and losses > r.max_stalled then
    redis.call('HSET', a.key .. ':failed:' .. a.run, only, 'its worker was lost more often than allowed')
    redis.call('HDEL', a.key .. ':lost', only)
    a.failed = a.failed + 1
    redis.call('HSET', a.key, 'failed', text(a.failed))
  elseif #elements > 0 then
    for _, element in ipairs(has_begun and not only and elements or {}) do
      redis.call('HSETNX', a.key .. ':lost', text(element), 0)
    end
    redis.call('ZADD', a.key .. ':again', text(r.now), L.positions.join(elements))
  end
  if not L.array_ends.end_if_done(x, a) then
    L.arrays.place(a, r.now)
  end
  for _, flow_id in ipairs(x.flows) do
    if flow_id ~= '' then r.flows[#r.flows + 1] = flow_id end
  end
end
