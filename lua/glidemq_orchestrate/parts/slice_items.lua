-- slice_items: the elements of a slice as its worker gets them. Part of slices.lua.
L.slice_items = {}
local MISSING = '?'
local text = L.numbers.text

-- The items of these elements, a line each; '' for a range. A missing item is not JSON, so that its worker refuses it.
local function items_of(a, elements)
  if a.per == 0 then
    return ''
  elseif elements[1] % a.per == 0 and #elements == math.min(a.per, a.size - elements[1])
    and elements[#elements] == elements[1] + #elements - 1 then -- a whole chunk
    return redis.call('HGET', a.key .. ':items', text(elements[1] / a.per)) or MISSING
  end
  local lines, chunk, number = {}, nil, -1
  for i, element in ipairs(elements) do
    if math.floor(element / a.per) ~= number then
      number, chunk = math.floor(element / a.per), {}
      local packed = redis.call('HGET', a.key .. ':items', text(number)) or MISSING
      for line in L.positions.lines(packed) do chunk[#chunk + 1] = line end
    end
    lines[i] = chunk[element % a.per + 1] or MISSING
  end
  return table.concat(lines, '\n')
end

-- What the worker needs of a slice beside the row of its array: elements, how often each was tried, items. `joined`: the
-- text of the elements.
function L.slice_items.about(a, elements, joined)
  local words, tried = {}, ''
  if redis.call('EXISTS', a.key .. ':attempts') == 1 then
    for i, element in ipairs(elements) do words[i] = text(element) end
    local counts = redis.call('HMGET', a.key .. ':attempts', unpack(words))
    for i = 1, #words do counts[i] = counts[i] or '0' end
    tried = table.concat(counts, ',')
  end
  return { joined, tried, items_of(a, elements), a.range }
end
