-- Making nodes ready: the only place that moves a node of a flow out of waiting-children.
L.release = {}

-- Routes one node by its own delay, and remembers the stream entry so that a cancel can take it back.
function L.release.node(ref, now)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  local fields = redis.call('HMGET', job_key, 'state', 'name', 'delay')
  if fields[1] ~= 'waiting-children' then
    return
  end
  local delay = tonumber(fields[3]) or 0
  if delay > 0 then
    redis.call('ZADD', prefix .. 'scheduled', now + delay, job_id)
    redis.call('HSET', job_key, 'state', 'delayed')
    return
  end
  local entry = redis.call('XADD', prefix .. 'stream', '*', 'jobId', job_id, 'name', fields[2] or '')
  redis.call('HSET', job_key, 'state', 'waiting', 'gmo:entry', entry)
end

-- Tells one dependent that a dependency completed; releases it when that was the last one. A repeat changes nothing.
local function notify(ref, dependent, now)
  local prefix, job_id = L.record.split(dependent)
  local job_key = prefix .. 'job:' .. job_id
  if redis.call('EXISTS', job_key) == 0 or redis.call('HSETNX', job_key, 'depdone:' .. ref, '1') == 0 then
    return
  end
  local done = redis.call('HINCRBY', job_key, 'depsCompleted', 1)
  if done >= redis.call('SCARD', prefix .. 'deps:' .. job_id) then
    if redis.call('HGET', job_key, 'state') == 'waiting-children' then
      L.release.node(dependent, now)
      L.events.emit(prefix .. 'events', 'active', job_id)
    end
  end
end

-- Tells all dependents of a completed job, whichever queue they are in.
function L.release.dependents(prefix, job_id, now)
  local ref = prefix .. job_id
  for _, dependent in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
    notify(ref, dependent, now)
  end
end
