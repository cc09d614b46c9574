-- activate: a fetched job becomes active.

local M = {}
L.activate = M

-- Marks a LIFO or prioritised job that came from the stream this time, so that it does not count as one of the lists.
local function is_detour(a, job)
  if a.entry_id ~= '' then
    return job.lifo == '1' or L.numbers.int(job.priority, 0) > 0
  elseif job.activeSource then
    redis.call('HDEL', a.prefix .. 'job:' .. a.job_id, 'activeSource')
  end
  return false
end

-- The flat field list with `changes` (name, value pairs) replaced or appended. These fields were written last, so the
-- search starts at the end.
local function patched(flat, job, changes)
  for i = 1, #changes, 2 do
    local field, at = changes[i], #flat + 1
    if job[field] then
      at = at - 2
      while flat[at] ~= field do
        at = at - 2
      end
    end
    flat[at], flat[at + 1] = field, changes[i + 1]
  end
  return flat
end

-- a: prefix job_id entry_id group now broadcast; optional skip_events, skip_metrics (of a refused job).
-- Returns a status ('' = no such job, REVOKED, EXPIRED, GROUP_*, ERR:COST_EXCEEDS_CAPACITY), or nil and the
-- flat field list of the job, now active. EXPIRED and later statuses have acknowledged the entry.
function M.job(a)
  local key = a.prefix .. 'job:' .. a.job_id
  local job, flat = L.hashes.load(key)
  if #flat == 0 then
    return ''
  end
  if job.revoked == '1' then
    return 'REVOKED'
  end
  if job.expireAt and L.expiry.check(a.prefix, a.job_id, a.now, job) then
    L.stream.ack(a.prefix .. 'stream', a.group, a.entry_id, a.broadcast)
    return 'EXPIRED'
  end
  if job.groupKey and job.groupKey ~= '' then
    local status = L.gates.enter(a, job)
    if status then
      return status
    end
  end
  local now = L.numbers.text(a.now)
  local changes = { 'state', 'active', 'processedOn', now, 'lastActive', now }
  if is_detour(a, job) then
    changes[7], changes[8] = 'activeSource', 'stream'
  end
  redis.call('HSET', key, unpack(changes))
  return nil, patched(flat, job, changes)
end
