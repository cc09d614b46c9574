-- reclaim: stream jobs with a silent consumer.

local M = {}
L.reclaim = M

local function requeue(r, job_id, entry_id, job)
  local key = r.prefix .. 'job:' .. job_id
  if r.broadcast then
    redis.call('HSET', key, 'state', 'active')
    return
  end
  L.stream.ack(r.prefix .. 'stream', r.group, entry_id, false)
  redis.call('HSET', key, 'state', 'waiting')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  L.stream.append(r.prefix .. 'stream', job_id, job.name)
end

local function died(r, job_id, entry_id, is_new)
  L.stream.ack(r.prefix .. 'stream', r.group, entry_id, r.broadcast)
  if is_new and r.on_dead then
    r.on_dead(job_id)
  end
end

-- States in which a silent worker does not matter: the job has ended, or will get a new entry when it is due.
local STRAY = { completed = true, failed = true, delayed = true, ['waiting-children'] = true }

local function handle(r, job_id, entry_id)
  local job = L.jobs.read(r.prefix, job_id)
  if not job or (STRAY[job.state] and not r.broadcast) then
    return died(r, job_id, entry_id, false)
  end
  local is_expired, is_new = L.expiry.check(r.prefix, job_id, r.now, job)
  if is_expired then
    return died(r, job_id, entry_id, is_new)
  end
  if L.stalled.is_alive(r.prefix, job_id, job, r.now, r.lock_duration or 0, r.min_idle) then
    return nil
  end
  local outcome = L.stalled.stall(r.prefix, job_id, job, r.max_stalled, r.now, r.failed_key, r.events_key)
  if outcome == 'failed' then
    return died(r, job_id, entry_id, true)
  end
  return requeue(r, job_id, entry_id, job)
end

-- One unreadable job must not prevent the others from being reclaimed.
local function try(r, job_id, entry_id)
  local is_fine, why = pcall(handle, r, job_id, entry_id)
  if is_fine then
    return nil
  elseif L.jobs.bury(r.prefix, job_id, r.now) then
    L.stream.ack(r.prefix .. 'stream', r.group, entry_id, r.broadcast)
    return nil
  end
  return type(why) == 'table' and why.err or tostring(why)
end

-- r: prefix group consumer min_idle max_stalled now failed_key broadcast lock_duration on_dead(job_id)|nil
-- Returns how many claimed entries carried a job id. One page (100 entries) per call.
function M.stream(r)
  local reply = redis.call('XAUTOCLAIM', r.prefix .. 'stream', r.group, r.consumer, r.min_idle, '0-0')
  local count, trouble = 0, nil
  for _, entry in ipairs(reply[2]) do
    local job_id = entry and entry[2] and L.stream.job_id(entry[2])
    if job_id then
      count = count + 1
      trouble = try(r, job_id, entry[1]) or trouble
    end
  end
  if trouble then
    error(trouble, 0)
  end
  return count
end
