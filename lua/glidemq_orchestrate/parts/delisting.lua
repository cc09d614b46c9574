-- delisting: takes jobs and flows that no longer exist off the lists of users, for cleanup. Lists are sampled.
L.delisting = {}
local TAGS, SAMPLE, TRACKED = 4, 50, 30 * 86400000

-- Removes jobs that another library has removed from the lists of some tags, and counts these again. Returns whether
-- there may be many more.
function L.delisting.tags(prefix)
  local looked, count = 0, 0
  for _, tag in ipairs(redis.call('ZRANDMEMBER', prefix .. 'qx:tags', TAGS)) do
    local missing = {}
    for _, job_id in ipairs(redis.call('ZRANDMEMBER', prefix .. 'qx:tag:' .. tag, SAMPLE)) do
      looked = looked + 1
      if redis.call('EXISTS', prefix .. 'job:' .. job_id) == 0 then
        missing[#missing + 1] = job_id
      end
    end
    L.tags.delist(prefix, tag, missing)
    L.tags.recount(prefix, tag)
    count = count + #missing
  end
  return count > 0 and count * 4 > looked
end

-- Stops tracking jobs and flows that were removed, a month after their tracking began; samples them.
function L.delisting.tracked(prefix, now)
  local page = redis.call('ZRANDMEMBER', prefix .. 'qx:tracked', SAMPLE, 'WITHSCORES')
  for i = 1, #page, 2 do
    local flow_id = page[i]:match('^flow:(.*)$')
    local is_there = flow_id and redis.call('EXISTS', prefix .. 'gmo:flow:' .. flow_id, prefix .. 'gmo:generations:' .. flow_id)
      or redis.call('EXISTS', prefix .. 'job:' .. page[i])
    if is_there == 0 and now - tonumber(page[i + 1]) > TRACKED then
      redis.call('ZREM', prefix .. 'qx:tracked', page[i])
    end
  end
end
