-- limited: groups that wait for the end of their window, for tokens, or for the end of a pause.
-- `<prefix>ratelimited` holds the time of the next try of each.

local M = {}
L.limited = M

local JOBS = 1000

-- How many parked jobs of a group may continue now.
local function room(group)
  local int = L.numbers.int
  local rate_max, limit = int(group.rateMax, 0), int(group.maxConcurrency, 0)
  local count = JOBS
  if rate_max > 0 then
    count = math.min(count, rate_max)
  end
  if limit > 0 then
    count = math.min(count, math.max(limit - int(group.active, 0), 0))
  end
  return count
end

-- Returns how many jobs of the group continue.
local function release_group(prefix, group_key, now, most)
  redis.call('ZREM', prefix .. 'ratelimited', group_key)
  local group = L.groups.load(prefix, group_key)
  if L.groups.defer_limited(prefix, group_key, group, now) then
    return 0
  end
  if group.limitedUntil then
    redis.call('HDEL', prefix .. 'group:' .. group_key, 'limitedUntil')
  end
  if not L.bucket.admits_head(prefix, group_key, group, now, true) then
    return 0
  end
  local count = room(group)
  local moved = L.groups.move_parked(prefix, group_key, group, math.min(count, most), now, true)
  if moved == most and moved < count then -- the next call moves the rest
    redis.call('ZADD', prefix .. 'ratelimited', now, group_key)
  end
  return moved
end

-- Puts parked jobs of due groups into the stream, at most `groups` groups and `most` jobs (nil: 1000 of each group).
-- Returns how many jobs.
function M.release(prefix, now, groups, most)
  local count = 0
  for _, group_key in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'ratelimited', 0, now, 'LIMIT', 0, groups)) do
    if most and count >= most then
      break
    end
    count = count + release_group(prefix, group_key, now, most and most - count or JOBS)
  end
  return count
end
