-- numbers: reading and writing numbers in the form of the wire.
-- Arguments and hash fields are text; scores are doubles; 2^42 separates priorities in the scheduled set.

local M = {}
L.numbers = M

-- The `math` library exists when a function runs, but not while the library loads.
local huge = 1 / 0
local EXACT = 9007199254740992

M.SHIFT = 4398046511104
M.EXACT = EXACT

-- The number in a text; `default` when it is absent, empty, not a number, or not finite.
function M.int(value, default)
  if value == '0' then
    return 0
  elseif not value or value == '' then
    return default
  end
  local n = tonumber(value)
  if n and n == n and n < huge and n > -huge then
    return n
  end
  return default
end

-- Lua's own conversion turns 10^15 into `1e+15`; ids and times must stay digits.
local function format(n)
  if n % 1 == 0 and n < EXACT and n > -EXACT then
    return string.format('%.0f', n)
  end
  return tostring(n)
end

-- Times and limits repeat, and formatting costs more than the rest of a small call: the last few texts are cached.
local texts, count, MAX_TEXTS = {}, 0, 64

function M.text(n)
  local known = texts[n]
  if known then
    return known
  end
  local text = format(n)
  if n ~= n then
    return text
  end
  if count >= MAX_TEXTS then
    texts, count = {}, 0
  end
  texts[n], count = text, count + 1
  return text
end

-- For numbers that do not repeat, such as ids.
M.fresh_text = format

function M.flag(value)
  return value == '1'
end

function M.score(priority, time)
  return priority * M.SHIFT + time
end

function M.class_of(score)
  return math.floor(score / M.SHIFT)
end

function M.time_of(score)
  return score % M.SHIFT
end
