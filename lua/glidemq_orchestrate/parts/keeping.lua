-- keeping: the retention in a job's options affects only jobs with the same retention.
--   <prefix>gmo:kept:<completed or failed>:<count>   zset: job id -> when it ended; jobs whose newest <count> are kept
--   <prefix>gmo:leaving                              see retention.lua: jobs to be removed by age, or still needed when
--                                                    due
L.keeping = {}
local BATCH, LETTER_MS = 100, 60000

local OPTION = { completed = 'removeOnComplete', failed = 'removeOnFail' }

-- The retention in the options of a job for this state; nil for none.
local function wanted_of(prefix, job_id, state)
  local opts, name = redis.call('HGET', prefix .. 'job:' .. job_id, 'opts'), OPTION[state]
  if not opts or not string.find(opts, '"' .. name .. '":', 1, true) then
    return nil
  end
  local is_json, options = pcall(cjson.decode, opts)
  return is_json and type(options) == 'table' and options[name] or nil
end

-- A job leaves this state or is removed: it no longer counts among the newest.
function L.keeping.forget(prefix, job_id, state)
  local wanted = OPTION[state] and wanted_of(prefix, job_id, state)
  local count = type(wanted) == 'table' and wanted.count or wanted
  if type(count) == 'number' then
    redis.call('ZREM', prefix .. 'gmo:kept:' .. state .. ':' .. L.numbers.text(count), job_id)
  end
end

-- Keeps the newest `count` of the jobs with this count. A job that was removed or retried by others is only delisted.
local function by_count(prefix, state, job_id, count, now)
  local key, text = prefix .. 'gmo:kept:' .. state .. ':' .. L.numbers.text(count), L.numbers.text
  redis.call('ZADD', key, now, job_id)
  local surplus = math.min(redis.call('ZCARD', key) - count, BATCH)
  local page = surplus > 0 and redis.call('ZPOPMIN', key, surplus) or {}
  for i = 1, #page, 2 do
    local ended = tonumber(page[i + 1])
    if redis.call('HGET', prefix .. 'job:' .. page[i], 'finishedOn') == text(ended)
      and redis.call('ZSCORE', prefix .. state, page[i]) then
      L.retention.remove(prefix, state, page[i], ended, now)
    end
  end
end

-- Applies the retention of a job that has just ended. mode `true`: it is removed now; `count` and `age_count`: it
-- counts among the newest `count`, and is removed at an age of `age` seconds (0 = no limit); else it is kept.
function L.keeping.apply(prefix, state, job_id, mode, count, age, now)
  if mode == 'true' then
    L.retention.remove(prefix, state, job_id, now, now)
    return
  elseif mode ~= 'count' and mode ~= 'age_count' then
    return
  end
  if mode == 'age_count' and age > 0 then
    L.retention.leave(prefix, state, job_id, now, now + age * 1000)
    L.retention.expire(prefix, now, BATCH)
  end
  if count > 0 then
    by_count(prefix, state, job_id, count, now)
  end
end

-- Applies the retention of a job that the server failed, from its options, since no worker reported an outcome.
function L.keeping.of_failed(prefix, job_id, now)
  local wanted = wanted_of(prefix, job_id, 'failed')
  if wanted == true and (redis.call('HGET', prefix .. 'gmo:letters', job_id) or ''):sub(-1) == '\n' then
    L.retention.leave(prefix, 'failed', job_id, now, now + LETTER_MS) -- its dead letter must first be made from it
  elseif wanted == true then
    L.keeping.apply(prefix, 'failed', job_id, 'true', 0, 0, now)
  elseif type(wanted) == 'number' then
    L.keeping.apply(prefix, 'failed', job_id, 'count', wanted, 0, now)
  elseif type(wanted) == 'table' then
    L.keeping.apply(prefix, 'failed', job_id, 'age_count', tonumber(wanted.count) or 0, tonumber(wanted.age) or 0, now)
  end
end

-- Mode, count and age of the retention in an outcome (outcome.lua); nodes of flows are kept.
function L.keeping.of_outcome(o, job)
  if job.flow or o.retention == '' then return '0', 0, 0 end
  local mode, count, age = o.retention:match('^(%S+) (%d+) (%d+)$')
  if not mode then return '0', 0, 0 end
  return mode, tonumber(count), tonumber(age)
end
