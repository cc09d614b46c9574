-- scheduled: delayed and prioritised jobs until they are due.
-- A score is priority * 2^42 + due time, so each priority forms a class, ordered by due time.
-- Our calls check the nearest classes and those in the index `L.priorities`, glide-mq's check all of them.

local M = {}
L.scheduled = M

-- How many classes our calls check without the index.
M.NEAREST = 16

-- Job id, its fields and the retry group of a member. A custom id may contain the bars that mark a retry group, so a
-- member that is a job id is not split.
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

-- Whether a member is the retry of a message with a state per subscription: it expires only for that subscription.
function M.is_of_subscription(prefix, job_id, group)
  return group and redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:message') == 1
end

local function release(prefix, member, class, now, on_expired)
  local job_id, job, group = resolve(prefix, member)
  if not job then
    return
  elseif not M.is_of_subscription(prefix, job_id, group) and L.expiry.check(prefix, job_id, now, job) then
    if on_expired then
      on_expired(job_id)
    end
    return
  end
  L.jobs.make_ready(prefix, job_id, job, class, group)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'waiting')
  L.events.emit(prefix .. 'events', 'promoted', job_id)
end

-- A member with a broken job does not block the others. Returns any other error.
local function promote_member(prefix, member, class, now, on_expired)
  local is_fine, why = pcall(release, prefix, member, class, now, on_expired)
  if not is_fine and not L.jobs.bury(prefix, member, now)
    and not L.jobs.bury(prefix, string.match(member, '^(.-)||') or member, now) then
    return type(why) == 'table' and why.err or tostring(why)
  end
  redis.call('ZREM', prefix .. 'scheduled', member)
  return nil
end

-- Moves at most `budget` due members to where workers find them; returns how many were removed. `on_expired`, if given,
-- is called for expired jobs. `nearest`: how many classes to check; nil for all, without the index.
function M.promote(prefix, now, budget, on_expired, nearest)
  local key, count, trouble = prefix .. 'scheduled', 0, nil
  local function promote_class(class)
    local members = count < budget and redis.call('ZRANGEBYSCORE', key, L.numbers.score(class, 0),
      L.numbers.score(class, now), 'LIMIT', 0, budget - count) or {}
    for _, member in ipairs(members) do
      trouble = promote_member(prefix, member, class, now, on_expired) or trouble
    end
    count = count + #members
  end
  L.priorities.each(key, '-inf', function(class, time)
    if time <= now then
      promote_class(class)
    end
    return count >= budget
  end, nearest)
  if nearest and count < budget then
    L.priorities.each_due(prefix, now, budget - count, promote_class)
  end
  if trouble then
    error(trouble, 0)
  end
  return count
end

-- When the next job or group becomes due: ms since the epoch (0 = at once), or -1. `prefix`: use the index.
function M.next_due(scheduled_key, ratelimited_key, prefix)
  local due = tonumber(redis.call('ZRANGE', ratelimited_key, 0, 0, 'WITHSCORES')[2])
  local function note(time)
    due = time and math.min(due or time, time) or due
  end
  note(prefix and L.priorities.next_due(prefix))
  L.priorities.each(scheduled_key, '-inf', function(_, time)
    note(time)
    return due <= 0
  end, prefix and M.NEAREST)
  return due and math.floor(due) or -1
end
