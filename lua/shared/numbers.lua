-- numbers: reading and writing numbers as the wire has them.
-- Arguments and hash fields are text; scores are doubles; 2^42 separates priorities in the scheduled set.

local M = {}
L.numbers = M

-- The `math` library is there when a function runs, not while the library loads.
local huge = 1 / 0
local EXACT = 9007199254740992

M.SHIFT = 4398046511104
M.EXACT = EXACT

-- The number in a text; `default` when it is absent, empty, no number, or not finite.
function M.int(value, default)
  if value == '0' then
    return 0
  end
  local n = tonumber(value)
  if n and n == n and n < huge and n > -huge then
    return n
  end
  return default
end

-- Lua's own conversion turns 10^15 into `1e+15`; ids and times must stay digits.
function M.text(n)
  if n == 0 then
    return '0'
  end
  if n % 1 == 0 and n < EXACT and n > -EXACT then
    return string.format('%.0f', n)
  end
  return tostring(n)
end

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
