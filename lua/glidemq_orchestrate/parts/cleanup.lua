-- cleanup: removes what a queue no longer needs and no other call removes, for gmo_cleanup. docs/reference/keys.md lists who
-- removes each key. A slice checks a bounded number of items. An unordered hash is sampled: while a quarter of a sample
-- is removed, there is more.
--   <prefix>gmo:dedup      zset: deduplication id -> when to check whether its entry may be removed; see dedup.lua of
--                          glide-mq's
--   <prefix>gmo:ordering   string: the highest number of any removed ordering key; see group_setup.lua
--   <prefix>gmo:supervised has the fields `cleaned` and `cleaned_minute`: when everything due was last removed, and the
--                          same for the work done once per minute
L.cleanup = {}
local SLICE, SAMPLE, FAILED = 100, 50, 200
local FORGOTTEN = 14 * 86400000
local SECOND, MINUTE, HOUR, UNKNOWN_WINDOW = 1000, 60000, 3600000, 30 * 86400000
local ENDED = { completed = true, failed = true }

local function job_of(value)
  local job_id, time = string.match(value, '^([^:]*):(.*)$')
  return job_id or value, L.numbers.int(time, 0)
end

local function forget_dedup(prefix, dedup_id)
  redis.call('HDEL', prefix .. 'dedup', dedup_id)
  redis.call('ZREM', prefix .. 'gmo:dedup', dedup_id)
end

-- Removes deduplication ids whose windows are over and whose jobs have ended; the next check of the others is after the
-- age of the entry, an hour at most. Returns how many were checked.
local function dedup(prefix, now)
  local due = redis.call('ZRANGEBYSCORE', prefix .. 'gmo:dedup', '-inf', now, 'LIMIT', 0, SLICE)
  for _, dedup_id in ipairs(due) do
    local value = redis.call('HGET', prefix .. 'dedup', dedup_id)
    local job_id, time = job_of(value or '')
    local state = value and redis.call('HGET', prefix .. 'job:' .. job_id, 'state')
    if not state or ENDED[state] then
      forget_dedup(prefix, dedup_id)
    else
      redis.call('ZADD', prefix .. 'gmo:dedup', now + math.max(SECOND, math.min(now - time, HOUR)), dedup_id)
    end
  end
  return #due
end

-- The window of an entry written by another library: from the options of its job, or a long one if that was removed.
local function window_of(prefix, job_id)
  local opts = redis.call('HGET', prefix .. 'job:' .. job_id, 'opts')
  local is_json, options = pcall(cjson.decode, opts or '')
  local mark = is_json and type(options) == 'table' and options.deduplication
  if not opts then
    return UNKNOWN_WINDOW
  end
  return type(mark) == 'table' and L.numbers.int(tostring(mark.ttl), 0) or 0
end

-- Notes some deduplication ids written by another library.
local function adopt_dedup(prefix)
  local noted = prefix .. 'gmo:dedup'
  if redis.call('HLEN', prefix .. 'dedup') <= redis.call('ZCARD', noted) then
    return
  end
  local page = redis.call('HRANDFIELD', prefix .. 'dedup', SLICE, 'WITHVALUES')
  for i = 1, #page, 2 do
    if page[i]:sub(1, 6) ~= 'spark:' and not redis.call('ZSCORE', noted, page[i]) then
      local job_id, time = job_of(page[i + 1])
      redis.call('ZADD', noted, time + window_of(prefix, job_id), page[i])
    end
  end
end

-- Whether the limits of a group allow its next job to start at once, so that removing them loses nothing.
local function is_fresh(prefix, group_key, group, now)
  local int = L.numbers.int
  local capacity = int(group.tbCapacity, 0)
  if L.groups.is_limited(group, now) or redis.call('ZSCORE', prefix .. 'ratelimited', group_key)
    or int(group.rateMax, 0) > 0 and now - int(group.rateWindowStart, 0) < int(group.rateDuration, 0) then
    return false
  end
  local elapsed = math.max(now - int(group.tbLastRefill, now), 0)
  return capacity <= 0
    or int(group.tbTokens, capacity) * 1000 + elapsed * int(group.tbRefillRate, 0) >= capacity * 1000
end

-- Whether no job of an ordering key waits, runs, or will return to a slot that it holds.
local function is_idle(prefix, group_key, last, now)
  local group, int = L.groups.load(prefix, group_key), L.numbers.int
  return int(group.active, 0) <= 0 and int(group.nextSeq, 0) > last
    and redis.call('EXISTS', prefix .. 'groupq:' .. group_key) == 0 and is_fresh(prefix, group_key, group, now)
end

-- The ordering keys of the most recently failed jobs: upstream's library would make these wait for numbers assigned
-- long ago.
local function keys_of_failed(prefix)
  local found = {}
  for _, job_id in ipairs(redis.call('ZRANGE', prefix .. 'failed', -FAILED, -1)) do
    local group_key = redis.pcall('HGET', prefix .. 'job:' .. job_id, 'groupKey')
    if type(group_key) == 'string' then
      found[group_key] = true
    end
  end
  return found
end

-- Removes the idle ordering keys of a sample. Returns whether there may be many more.
local function groups(prefix, now)
  local page, count, failed = redis.call('HRANDFIELD', prefix .. 'ordering', SAMPLE, 'WITHVALUES'), 0, nil
  for i = 1, #page, 2 do
    local last = L.numbers.int(page[i + 1], 0)
    if is_idle(prefix, page[i], last, now) then
      failed = failed or keys_of_failed(prefix)
      if not failed[page[i]] then
        if last > L.numbers.int(redis.call('GET', prefix .. 'gmo:ordering'), 0) then
          redis.call('SET', prefix .. 'gmo:ordering', L.numbers.text(last))
        end
        redis.call('HDEL', prefix .. 'ordering', page[i])
        redis.call('UNLINK', prefix .. 'group:' .. page[i])
        count = count + 1
      end
    end
  end
  return count * 8 > #page -- two entries of the page for each
end

-- Removes the leases of owners of portable flows that were not renewed for twice the longest lapse, unless such a flow
-- is open: its cancellation reports the last renewal. Leases of other flows are removed with their last flow. A client
-- does this too when it removes such a flow.
local function owners(prefix, now)
  if redis.call('EXISTS', prefix .. 'gmo:portable') == 1 then
    return
  end
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'gmo:owners', '-inf', now - FORGOTTEN, 'LIMIT', 0, SLICE)) do
    if redis.call('EXISTS', prefix .. 'gmo:owned:' .. lease) == 0 then
      redis.call('ZREM', prefix .. 'gmo:owners', lease)
    end
  end
end

-- Whether work is due, by a field with the time of the last run.
local function is_due(prefix, field, now, every)
  local last = L.numbers.int(redis.call('HGET', prefix .. 'gmo:supervised', field), 0)
  return now < last or now - last >= every
end

local function note(prefix, field, now)
  redis.call('HSET', prefix .. 'gmo:supervised', field, L.numbers.text(now))
end

-- Returns whether there is more to do.
local function each_minute(prefix, now)
  if not is_due(prefix, 'cleaned_minute', now, MINUTE) then
    return false
  end
  local completed = L.metrics.purge(prefix .. 'metrics:completed', now)
  if L.metrics.purge(prefix .. 'metrics:failed', now) or completed then
    return true
  end
  if L.delisting.tags(prefix) then
    return true
  end
  L.delisting.tracked(prefix, now)
  adopt_dedup(prefix)
  owners(prefix, now)
  note(prefix, 'cleaned_minute', now)
  return false
end

-- Does a slice; returns whether there is more to do. Every worker calls this; one call per second does the work.
function L.cleanup.slice(prefix, now)
  if not is_due(prefix, 'cleaned', now, SECOND) then
    return false
  end
  local has_old, looked = each_minute(prefix, now), dedup(prefix, now)
  local has_more = groups(prefix, now) or has_old or looked == SLICE
  if not has_more then
    note(prefix, 'cleaned', now)
  end
  return has_more
end
