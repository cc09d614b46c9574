-- slice_items: the elements of a slice as its worker gets them. Part of slices.lua.
L.slice_items = {}
local MISSING = '?'
local text = L.numbers.text

-- The items of elements that others have added, after `lines`.
local function add_appended(a, elements, lines)
  local words = {}
  for i = #lines + 1, #elements do words[#words + 1] = text(elements[i]) end
  for _, item in ipairs(#words > 0 and redis.call('HMGET', a.key .. ':appended', unpack(words)) or {}) do
    lines[#lines + 1] = item or MISSING
  end
end

-- The items of these elements, a line each; '' for a range. A missing item is not JSON, so that its worker refuses it.
local function items_of(a, elements)
  if a.per == 0 then
    return ''
  elseif elements[1] % a.per == 0 and #elements == math.min(a.per, a.given - elements[1])
    and elements[#elements] == elements[1] + #elements - 1 then -- a whole chunk
    return redis.call('HGET', a.key .. ':items', text(elements[1] / a.per)) or MISSING
  end
  local lines, chunk, number = {}, nil, -1
  for i, element in ipairs(elements) do
    if element >= a.given then break end
    if math.floor(element / a.per) ~= number then
      number, chunk = math.floor(element / a.per), {}
      local packed = redis.call('HGET', a.key .. ':items', text(number)) or MISSING
      for line in L.positions.lines(packed) do chunk[#chunk + 1] = line end
    end
    lines[i] = chunk[element % a.per + 1] or MISSING
  end
  add_appended(a, elements, lines)
  return table.concat(lines, '\n')
end

-- The item of an element as JSON.
function L.slice_items.one(a, element)
  local start, step = a.range:match('^(%S+) (%S+)$')
  return start and text(tonumber(start) + element * tonumber(step)) or items_of(a, { element })
end

-- Adds elements with these items at the end of an array.
function L.slice_items.append(a, items)
  local words = {}
  for i, item in ipairs(items) do
    words[#words + 1], words[#words + 2] = text(a.size + i - 1), item
    if #words == 1000 or i == #items then
      redis.call('HSET', a.key .. ':appended', unpack(words))
      words = {}
    end
  end
  a.size = a.size + #items
  redis.call('HSET', a.key, 'appended', text(a.size - a.given))
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
