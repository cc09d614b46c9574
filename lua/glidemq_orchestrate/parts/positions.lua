-- positions: the positions of elements of an array as a text like "0-63" or "3,7-9", and a line for each element.
L.positions = {}
local text = L.numbers.text

-- The elements in the text of a slice, at most `count`, and the text of the others ('' = none).
function L.positions.split(elements, count)
  local found, rest = {}, {}
  for first, last in elements:gmatch('(%d+)%-?(%d*)') do
    first, last = tonumber(first), tonumber(last ~= '' and last or first)
    while first <= last and #found < count do
      found[#found + 1], first = first, first + 1
    end
    if first <= last then
      rest[#rest + 1] = first == last and text(first) or text(first) .. '-' .. text(last)
    end
  end
  return found, table.concat(rest, ',')
end

-- The text of elements in ascending order.
function L.positions.join(elements)
  local parts, first = {}, 1
  for i = 1, #elements do
    if elements[i + 1] ~= elements[i] + 1 then
      parts[#parts + 1] = text(elements[first]) .. (i > first and '-' .. text(elements[i]) or '')
      first = i + 1
    end
  end
  return table.concat(parts, ',')
end

-- Whether a text has an element; it need not be in ascending order.
function L.positions.contains(elements, element)
  for first, last in elements:gmatch('(%d+)%-?(%d*)') do
    if element >= tonumber(first) and element <= tonumber(last ~= '' and last or first) then
      return true
    end
  end
  return false
end

-- The text of the elements that another text (nil = none) does not have.
function L.positions.without(elements, others)
  if not others then
    return elements
  end
  local kept = {}
  for _, element in ipairs((L.positions.split(elements, L.slices.MAX))) do
    if not L.positions.contains(others, element) then kept[#kept + 1] = element end
  end
  return L.positions.join(kept)
end

-- Iterates over the lines of a text that may be large.
function L.positions.lines(all)
  local at = 1
  return function()
    if at > #all then
      return nil
    end
    local stop = all:find('\n', at, true) or #all + 1
    local line = all:sub(at, stop - 1)
    at = stop + 1
    return line
  end
end
