-- glidemq_promote: move due scheduled jobs to where workers find them.
-- KEYS  1 scheduled  2 stream  3 events
-- ARGS  1 now
-- REPLY integer: members taken out, at most 1000 (expired ones and those without a job included)
-- EVENT promoted | expired
--
-- glidemq_nextDue: when the next job or group becomes due.
-- KEYS  1 scheduled  2 ratelimited
-- REPLY integer: ms since the epoch (0 = at once), or -1 when nothing waits
--
-- A score is priority * 2^42 + due time, so each priority is a class of its own, ordered by due time.

local BUDGET = 1000

-- Calls `visit(class, time of its first member)` from the lowest class up until it returns true.
local function each_class(scheduled_key, visit)
  local from = '-inf'
  while true do
    local first = redis.call('ZRANGEBYSCORE', scheduled_key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local score = tonumber(first[2])
    if not score then
      return
    end
    local class = L.numbers.class_of(score)
    if visit(class, L.numbers.time_of(score)) then
      return
    end
    from = L.numbers.score(class + 1, 0)
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

local function promote_member(prefix, member, class, now)
  redis.call('ZREM', prefix .. 'scheduled', member)
  local job_id, job, group = resolve(prefix, member)
  if not job or L.expiry.check(prefix, job_id, now, job) then
    return
  end
  L.jobs.make_ready(prefix, job_id, job, class, group)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'waiting')
  L.events.emit(prefix .. 'events', 'promoted', job_id)
end

local function promote(keys, args)
  local now = L.numbers.int(args[1], 0)
  local prefix, count = L.hashes.prefix(keys[1], 'scheduled'), 0
  each_class(keys[1], function(class)
    local members = redis.call('ZRANGEBYSCORE', keys[1], L.numbers.score(class, 0),
      L.numbers.score(class, now), 'LIMIT', 0, BUDGET - count)
    for _, member in ipairs(members) do
      promote_member(prefix, member, class, now)
    end
    count = count + #members
    return count >= BUDGET
  end)
  return count
end

local function next_due(keys)
  local due = tonumber(redis.call('ZRANGE', keys[2], 0, 0, 'WITHSCORES')[2])
  each_class(keys[1], function(_, time)
    due = math.min(due or time, time)
    return due <= 0
  end)
  return due and math.floor(due) or -1
end

redis.register_function({ function_name = 'glidemq_promote', callback = promote, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'glidemq_nextDue', callback = next_due, flags = { 'allow-oom' } })
