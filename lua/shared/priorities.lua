-- priorities: when the first scheduled job of each priority is due.
-- `<prefix>gmo:priorities` (zset): priority as 16 digits -> a time that is not after the due time of its first job.
-- A score in the scheduled set is priority * 2^42 + due time; without this index, finding what is due would visit every
-- priority. The entries are hints: checking a priority corrects its entry, and removes it when it is due without jobs.
-- Priority 0 needs no entry: it is always the first.

local M = {}
L.priorities = M

local huge = 1 / 0
local PER_SURVEY = 500

local function index_of(prefix)
  return prefix .. 'gmo:priorities'
end

-- An infinite priority has an infinite score.
local function member_of(priority)
  return priority < huge and string.format('%016.0f', priority) or 'inf'
end

local function priority_of(member)
  return member == 'inf' and huge or tonumber(member)
end

-- The priority and the due time of the first scheduled job from a score on; nil when there is none.
function M.first_from(scheduled_key, score)
  local found = redis.call('ZRANGEBYSCORE', scheduled_key, score, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  score = tonumber(found)
  if not score then
    return nil
  elseif score - score ~= 0 then
    return score, 0
  end
  return L.numbers.class_of(score), L.numbers.time_of(score)
end

-- Calls `visit(priority, due time of its first job)` from the lowest priority up until it returns true, at most `most`
-- times. Returns the score to continue from, nil after the last priority.
function M.each(scheduled_key, from, visit, most)
  for _ = 1, most or huge do
    local priority, time = M.first_from(scheduled_key, from)
    if not priority or visit(priority, time) or priority == huge then
      return nil
    end
    from = priority > -huge and L.numbers.score(priority + 1, 0) or '(-inf'
  end
  return from
end

-- Adds a scheduled job, or moves it. `due`: ms since the epoch; 0 = at once.
function M.schedule(scheduled_key, member, priority, due)
  redis.call('ZADD', scheduled_key, L.numbers.score(priority, due), member)
  if priority > 0 then
    redis.call('ZADD', index_of(L.hashes.prefix(scheduled_key, 'scheduled')), 'LT', due, member_of(priority))
  end
end

-- Removes a job before it is due.
function M.unschedule(prefix, member)
  if redis.call('ZREM', prefix .. 'scheduled', member) == 1 and redis.call('EXISTS', prefix .. 'scheduled') == 0 then
    redis.call('UNLINK', index_of(prefix))
  end
end

-- Calls `visit(priority)` for those with jobs that are due, in order, at most `most`; corrects their entries.
function M.each_due(prefix, now, most, visit)
  local index, due = index_of(prefix), {}
  for i, member in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)) do
    due[i] = priority_of(member)
  end
  table.sort(due)
  for _, priority in ipairs(due) do
    visit(priority)
    local first, time = M.first_from(prefix .. 'scheduled', L.numbers.score(priority, 0))
    if first == priority then
      redis.call('ZADD', index, time, member_of(priority))
    else
      redis.call('ZREM', index, member_of(priority))
    end
  end
end

-- When the first of the entries is due; nil without any.
function M.next_due(prefix)
  return tonumber(redis.call('ZRANGE', index_of(prefix), 0, 0, 'WITHSCORES')[2])
end

-- Corrects the entries of the next priorities, from where the last call stopped: jobs scheduled by upstream's library
-- have none.
function M.survey(prefix)
  if redis.call('EXISTS', prefix .. 'scheduled') == 0 then
    redis.call('UNLINK', index_of(prefix))
    return
  end
  local place = prefix .. 'gmo:supervised'
  local from = redis.call('HGET', place, 'priority') or L.numbers.score(1, 0)
  local stopped = M.each(prefix .. 'scheduled', from, function(priority, time)
    redis.call('ZADD', index_of(prefix), time, member_of(priority))
  end, PER_SURVEY)
  if stopped then
    redis.call('HSET', place, 'priority', string.format('%.0f', stopped))
  elseif from ~= L.numbers.score(1, 0) then
    redis.call('HDEL', place, 'priority')
  end
end
