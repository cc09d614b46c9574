-- metrics: per-minute counters `m:<minute>:c` (finished jobs) and `m:<minute>:d` (summed milliseconds).

local M = {}
L.metrics = M

local BUCKET = 60000
local KEEP = 86400000
local PURGE_EVERY = 1000

local function purge(metrics_key, oldest)
  local dead = {}
  for _, field in ipairs(redis.call('HKEYS', metrics_key)) do
    local start = string.match(field, '^m:(%d+):')
    if start and tonumber(start) < oldest then
      dead[#dead + 1] = field
    end
  end
  L.hashes.slices(#dead, function(first, last)
    redis.call('HDEL', metrics_key, unpack(dead, first, last))
  end)
end

-- `jobs` finished jobs (1 when left out) took `duration` together.
function M.record(metrics_key, now, duration, jobs)
  local bucket = now - now % BUCKET
  local field = 'm:' .. L.numbers.text(bucket)
  local count = L.hashes.add(metrics_key, field .. ':c', jobs or 1)
  if duration >= 1 then
    L.hashes.add(metrics_key, field .. ':d', math.floor(duration))
  end
  if count % PURGE_EVERY < (jobs or 1) then
    purge(metrics_key, bucket - KEEP)
  end
end
