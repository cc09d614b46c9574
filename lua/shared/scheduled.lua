-- scheduled: delayed and prioritised jobs until they are due.
-- A score is priority * 2^42 + due time, so each priority is a class of its own, ordered by due time.

local M = {}
L.scheduled = M

-- Calls `visit(class, time of its first member)` from the lowest class up until it returns true.
local function each_class(scheduled_key, visit)
  local from = '-inf'
  while true do
    local first = redis.call('ZRANGEBYSCORE', scheduled_key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local score = tonumber(first[2])
    if not score then
      return
    end
    local is_finite = score - score == 0 -- a job with an endless priority has an endless score: due at once
    local class = is_finite and L.numbers.class_of(score) or score
    if visit(class, is_finite and L.numbers.time_of(score) or 0) or score > 0 and not is_finite then
      return
    end
    from = is_finite and L.numbers.score(class + 1, 0) or '(-inf'
  end
end

-- Job id, its fields and the retry group of a member. A custom id may hold the bars that mark a retry group,
-- so a member that names a job is taken as it is.
local function resolve(prefix, member)
  local job = L.jobs.read(prefix, member)
  if job then
    return member, job, nil
  end
  local job_id, group = string.match(member, '^(.-)||(.*)$')
  if not job_id then
    return member, nil, nil
  end
  return job_id, L.jobs.read(prefix, job_id), group
end

local function release(prefix, member, class, now, on_expired)
  local job_id, job, group = resolve(prefix, member)
  if not job then
    return
  elseif L.expiry.check(prefix, job_id, now, job) then
    if on_expired then
      on_expired(job_id)
    end
    return
  end
  L.jobs.make_ready(prefix, job_id, job, class, group)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'waiting')
  L.events.emit(prefix .. 'events', 'promoted', job_id)
end

-- A member whose job is broken keeps none of the others. Returns what went wrong otherwise.
local function promote_member(prefix, member, class, now, on_expired)
  local is_fine, why = pcall(release, prefix, member, class, now, on_expired)
  if not is_fine and not L.jobs.bury(prefix, member, now)
    and not L.jobs.bury(prefix, string.match(member, '^(.-)||') or member, now) then
    return type(why) == 'table' and why.err or tostring(why)
  end
  redis.call('ZREM', prefix .. 'scheduled', member)
  return nil
end

-- Moves at most `budget` due members to where workers find them; returns how many were taken out. `on_expired`, if
-- given, hears of the jobs that were too old.
function M.promote(prefix, now, budget, on_expired)
  local count, trouble = 0, nil
  each_class(prefix .. 'scheduled', function(class)
    local members = redis.call('ZRANGEBYSCORE', prefix .. 'scheduled', L.numbers.score(class, 0),
      L.numbers.score(class, now), 'LIMIT', 0, budget - count)
    for _, member in ipairs(members) do
      trouble = promote_member(prefix, member, class, now, on_expired) or trouble
    end
    count = count + #members
    return count >= budget
  end)
  if trouble then
    error(trouble, 0)
  end
  return count
end

-- When the next job or group becomes due: ms since the epoch (0 = at once), or -1.
function M.next_due(scheduled_key, ratelimited_key)
  local due = tonumber(redis.call('ZRANGE', ratelimited_key, 0, 0, 'WITHSCORES')[2])
  each_class(scheduled_key, function(_, time)
    due = math.min(due or time, time)
    return due <= 0
  end)
  return due and math.floor(due) or -1
end
