-- kept_elements: which elements of a slice an outcome is about. A worker whose current element takes long reports early
-- those that have ended, with a last line `k`: the current one goes on under the same lease, and those after it are given
-- back. The first number of that report, and of the one that ends the kept element, is the position of the first element
-- with a line, plus 1 (0: it is the first of the slice). So a repeat is recognized: it changes nothing, and gets the same
-- verdict, which the field gmo:verdict of the slice has if it is not `ok`.
L.kept_elements = {}
local int, text = L.numbers.int, L.numbers.text

-- Gives elements back, without those that were ended by hand.
function L.kept_elements.give_back(x, a, elements, ended, first, last)
  local some = L.positions.join({ unpack(elements, first, last) })
  L.slices.list_again(a, L.positions.without(some, ended), x.now)
end

local function stale(slice_id, first)
  return nil, 'stale element ' .. text(first - 1) .. ' is not where its worker says in slice ' .. slice_id
end

-- Leaves the first element without a line in the slice, unless it was ended by hand: then its worker loses the lease.
-- Returns those before it.
local function keep(x, a, slice_id, count, first)
  local key = a.prefix .. 'job:' .. slice_id
  local v = redis.call('HMGET', key, 'gmo:elements', 'gmo:weight', 'gmo:verdict', 'gmo:ended')
  local elements = L.positions.split(v[1] or '', L.slices.MAX)
  if #elements == 1 and first > 0 and elements[1] >= first then -- what comes before was reported
    return nil, v[3] or 'ok'
  elseif elements[1] ~= first - 1 or count >= #elements then
    return stale(slice_id, first)
  end
  local kept, ended = elements[count + 1], v[4] or nil
  L.kept_elements.give_back(x, a, elements, ended, count + 2, #elements)
  if ended and L.positions.contains(ended, kept) then
    L.slices.remove(a, slice_id)
    return { unpack(elements, 1, count) }, nil, ended
  end
  redis.call('HSET', key, 'gmo:elements', text(kept), 'gmo:weight', 1)
  a.running = math.max(a.running - int(v[2], 1) + 1, 0)
  redis.call('HSET', a.key, 'running', text(a.running))
  return { unpack(elements, 1, count) }, nil, ended
end

-- The elements that an outcome may have lines for, nil, and those that were ended by hand, as a text (nil = none); or nil
-- and the verdict, if it is a repeat. `lines`: those of elements; a last line `k` is removed. Without it the slice ends.
function L.kept_elements.take(x, a, slice_id, lines, first)
  if lines[#lines] == 'k' then
    lines[#lines] = nil
    return keep(x, a, slice_id, #lines, first)
  end
  local all, ended = L.slices.remove(a, slice_id)
  local elements, at = L.positions.split(all, L.slices.MAX), 1
  if first == 0 then
    return elements, nil, ended
  end
  while at <= #elements and elements[at] < first - 1 do at = at + 1 end
  L.kept_elements.give_back(x, a, elements, ended, 1, at - 1) -- the server has lost the early report
  if elements[at] ~= first - 1 then
    L.kept_elements.give_back(x, a, elements, ended, at, #elements)
    return stale(slice_id, first)
  end
  return { unpack(elements, at) }, nil, ended
end

-- Notes the verdict on an early report, for a repeat of it; other slices have ended.
function L.kept_elements.note(a, slice_id, verdict)
  local key = a.prefix .. 'job:' .. slice_id
  if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'gmo:verdict', verdict) end
end
