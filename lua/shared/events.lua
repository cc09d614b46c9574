-- events: the log of a queue, trimmed to about 1000 entries, and to 16 MiB of large ones. It only wakes waiting
-- clients: if it cannot be written, because its key has another type or its ids are exhausted, the jobs continue
-- anyway.

local M = {}
L.events = M

local LARGE, MAX = 8 * 1024, 16 * 1024 * 1024

local function read(row)
  local id, upto, size = string.match(row or '', '^(%S+) (%d+) (%d+)$')
  return id or '0-0', tonumber(upto) or 0, tonumber(size) or 0
end

-- A list beside the stream has its large entries: `<id> <bytes of all up to it> <bytes>`. An entry trimmed by count
-- stays in the list until it is the oldest. Readers of the wire need results in their events, so the oldest events are
-- trimmed as if there were more than 1000: readers can detect the gap.
local function trim_large(events_key, entry_id, size)
  local list = string.sub(events_key, 1, -7) .. 'gmo:large-events'
  local _, before = read(redis.call('LRANGE', list, -1, -1)[1])
  local text = L.numbers.fresh_text
  redis.call('RPUSH', list, entry_id .. ' ' .. text(before + size) .. ' ' .. text(size))
  local gone
  while true do
    local id, upto, own = read(redis.call('LRANGE', list, 0, 0)[1])
    if before + size - (upto - own) <= MAX or id == entry_id then
      break
    end
    redis.call('LPOP', list)
    gone = id
  end
  if gone then
    local ms, number = string.match(gone, '^(%d+)-(%d+)$')
    redis.call('XTRIM', events_key, 'MINID', ms .. '-' .. text(tonumber(number) + 1))
  end
end

-- Trimming costs nearly as much as the rest of an event. Of events of the same queue in a row, one in RUN trims: the log
-- has at most that many more. Databases share the count. RUN is prime, so that of those that take turns each trims.
local RUN = 31
local last_key, left = nil, 0

-- Appends an entry.
local function append(events_key, ...)
  if events_key == last_key and left > 0 then
    left = left - 1
    return redis.pcall('XADD', events_key, '*', ...)
  end
  last_key, left = events_key, RUN - 1
  return redis.pcall('XADD', events_key, 'MAXLEN', '~', '1000', '*', ...)
end

-- Every job emits several events, and few are large: the common case must be cheap. Only the value of the first field
-- may be large; a second one is a short text.
function M.emit(events_key, event, job_id, field, value, ...)
  if not field then
    append(events_key, 'event', event, 'jobId', job_id)
    return
  end
  local entry_id = append(events_key, 'event', event, 'jobId', job_id, field, value, ...)
  local size = #field + string.len(value)
  if size > LARGE and type(entry_id) == 'string' then
    trim_large(events_key, entry_id, size)
  end
end
