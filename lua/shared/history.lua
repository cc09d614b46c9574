-- history: what happened to a job, for the jobs that record it: those with the option `history`, and tracked ones.
--   job:<id>   its field gmo:history: lines `<ms> <kind> <text>`, oldest first, at most the last 99. When the job was
--              added is the first entry of each history, and how it ended the last one: other fields have both anyway.
-- Node workers do not write it. Clients add what the other fields show.

local M = {}
L.history = M

local MAX_LINES, MAX_TEXT, SHORT = 99, 200, 1500
local OPTION = '"history":'

-- Whether the options ask for a history. Most do not, and the common case must be cheap.
function M.is_wanted(opts)
  if opts == '{}' then
    return false
  end
  local _, last = string.find(opts or '', OPTION, 1, true)
  return last and string.find(opts, '^ ?true', last + 1) and true or false
end

-- The first line of a text, up to 200 bytes of whole characters.
local function short(text)
  if #text <= MAX_TEXT and not string.find(text, '\n', 1, true) then
    return text
  end
  local line = string.match(text, '^[^\n]*')
  if #line > MAX_TEXT then
    line = string.gsub(string.sub(line, 1, MAX_TEXT), '[\192-\255]?[\128-\191]*$', '')
  end
  return line
end

-- The value of the field with one more line; `stored` may be nil or false.
function M.with(stored, now_text, kind, text)
  stored = stored or ''
  if #stored > SHORT then -- a line has 15 bytes at least
    local _, breaks = string.gsub(stored, '\n', '\n')
    for _ = MAX_LINES - 1, breaks do
      stored = string.sub(stored, string.find(stored, '\n', 1, true) + 1)
    end
  end
  return (stored == '' and '' or stored .. '\n') .. now_text .. ' ' .. kind .. ' ' .. short(text or '')
end

-- Adds a line to the history of an existing job that records one; `starts`: also to that of another one.
function M.note(key, now, kind, text, starts)
  local v = redis.call('HMGET', key, 'gmo:history', 'opts')
  if starts or v[1] or M.is_wanted(v[2]) then
    redis.call('HSET', key, 'gmo:history', M.with(v[1], L.numbers.text(now), kind, text))
  end
end

-- Adds what became of an attempt after which its job goes on, if that has a history. x, o, job: see outcome.lua.
function M.ended(x, o, job, kind, text)
  if job.history then
    redis.call('HSET', x.prefix .. 'job:' .. o.job_id, 'gmo:history', M.with(job.history, x.now_text, kind, text))
  end
end

local PARKED = { later = 'delay-changed', children = 'waiting-children', suspend = 'suspended', back = 'returned' }

-- The same for an attempt without an outcome.
function M.parked(x, o, job)
  M.ended(x, o, job, PARKED[o.kind], o.kind == 'suspend' and o.text)
end

-- A job that records a history starts over. Its end goes into the history too: its fields are about to be cleared.
function M.start_over(key, now)
  local v = redis.call('HMGET', key, 'gmo:history', 'opts', 'state', 'finishedOn', 'failedReason', 'gmo:skipped')
  if not v[1] and not M.is_wanted(v[2]) then
    return
  end
  local stored, ended = v[1], v[4]
  local has_ended = (v[3] == 'failed' or v[3] == 'completed') and ended and ended ~= ''
  if has_ended then
    stored = M.with(stored, ended, v[6] and 'skipped' or v[3], v[6] or v[3] == 'failed' and v[5])
  end
  redis.call('HSET', key, 'gmo:history', M.with(stored, L.numbers.text(now), 'retried'))
end
