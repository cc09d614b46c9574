-- array_keys: the keys of an array node; lua/glidemq_orchestrate/parts/arrays.lua describes them.

local M = {}
L.array_keys = M

-- The ends of their names, without the items and the failed elements.
local OF_ARRAY = { '', ':done', ':results', ':skipped', ':again', ':attempts', ':lost', ':appended', ':jobs',
  ':ended', ':changes', ':reasons' }
local MAX_RUNS = 1000

-- Deletes what the runs of an array have left: its items stay.
function M.erase(prefix, job_id)
  local key = prefix .. 'gmo:array:' .. job_id
  local runs = math.min(L.numbers.int(redis.call('HGET', key, 'run'), 0), MAX_RUNS)
  redis.call('ZREM', prefix .. 'gmo:arrays', job_id)
  redis.call('ZREM', prefix .. 'gmo:array-priorities', job_id)
  for _, slice_id in ipairs(redis.call('SMEMBERS', key .. ':slices')) do
    redis.call('UNLINK', prefix .. 'job:' .. slice_id)
    redis.call('ZREM', prefix .. 'gmo:list-held', slice_id)
  end
  for _, name in ipairs(OF_ARRAY) do redis.call('UNLINK', key .. name) end
  redis.call('UNLINK', key .. ':slices')
  for run = 0, runs do redis.call('UNLINK', key .. ':failed:' .. run) end
end

-- The same for a job that may be none, with the items if its node will not run again.
function M.forget(prefix, job_id, with_items)
  if redis.pcall('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:array') ~= 1 then -- its key may be of another type
    return
  end
  M.erase(prefix, job_id)
  if with_items then
    local key = prefix .. 'gmo:array:' .. job_id
    redis.call('UNLINK', key .. ':items', key .. ':changed')
  end
end
