-- metrics: per-minute counters `m:<minute>:c` (finished jobs) and `m:<minute>:d` (summed milliseconds).

local M = {}
L.metrics = M

local BUCKET = 60000
local KEEP = 86400000
local PURGE_EVERY = 1000
local MANY, SOME, FEW, BEFORE = 4000, 500, 300, 10

-- Removes minutes that are too old; only some if the hash has far more minutes than a day. Returns whether it does.
function M.purge(metrics_key, now)
  local dead, oldest = {}, now - now % BUCKET - KEEP
  local is_large = redis.call('HLEN', metrics_key) > MANY
  for _, field in ipairs(is_large and redis.call('HRANDFIELD', metrics_key, SOME) or redis.call('HKEYS', metrics_key)) do
    local start = string.match(field, '^m:(%d+):')
    if start and tonumber(start) < oldest then
      dead[#dead + 1] = field
    end
  end
  L.hashes.slices(#dead, function(first, last)
    redis.call('HDEL', metrics_key, unpack(dead, first, last))
  end)
  return is_large
end

-- The same at the first job of a minute, so that slow queues are purged too: checks all of few minutes, otherwise only
-- those that have recently become too old.
local function purge_lately(metrics_key, now, bucket)
  if redis.call('HLEN', metrics_key) <= FEW then
    M.purge(metrics_key, now)
    return
  end
  local dead = {}
  for minute = 1, BEFORE do
    local field = 'm:' .. L.numbers.fresh_text(bucket - KEEP - minute * BUCKET)
    dead[2 * minute - 1], dead[2 * minute] = field .. ':c', field .. ':d'
  end
  redis.call('HDEL', metrics_key, unpack(dead))
end

-- `jobs` finished jobs (1 when left out) took `duration` together.
function M.record(metrics_key, now, duration, jobs)
  local bucket = now - now % BUCKET
  local field = 'm:' .. L.numbers.text(bucket)
  local count = L.hashes.add(metrics_key, field .. ':c', jobs or 1)
  if duration >= 1 then
    L.hashes.add(metrics_key, field .. ':d', math.floor(duration))
  end
  if count == (jobs or 1) then
    purge_lately(metrics_key, now, bucket)
  elseif count % PURGE_EVERY < (jobs or 1) then
    M.purge(metrics_key, now)
  end
end

-- Milliseconds since the job was activated; `missing` when it was not.
function M.duration(job, now, missing)
  return now - L.numbers.int(job.processedOn, now - (missing or 0))
end
