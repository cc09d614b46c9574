-- Making nodes ready: the only place that moves a node of a flow out of waiting-children.
L.release = {}

local SLICE = 50

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

local function tell(key, ref, dependent, cause, now)
  if cause then
    redis.call('SADD', key .. ':blocked', dependent .. '\n' .. cause)
  else
    notify(ref, dependent, now)
  end
end

L.release.tell = tell

-- Tells the dependents of a job, whichever queue they are in, that it completed; or, with a cause, that the failure
-- of the node <cause> blocks them. Returns true when they are so many that gmo_advance_flow has to go on.
function L.release.dependents(flow, prefix, job_id, now, cause)
  local key, parents, ref = L.record.key(flow.home, flow.id), prefix .. 'parents:' .. job_id, prefix .. job_id
  local count = redis.call('SCARD', parents)
  if count > 0 and (cause or count > SLICE) then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
  end
  if count > SLICE then
    redis.call('HSET', key .. ':telling', ref, '0\n' .. (cause or ''))
    return true
  end
  for _, dependent in ipairs(redis.call('SMEMBERS', parents)) do
    tell(key, ref, dependent, cause, now)
  end
  return false
end

-- Goes on with one job that has many dependents; returns how many such jobs are left.
function L.release.go_on(key, now)
  local telling = key .. ':telling'
  local ref = redis.call('HRANDFIELD', telling)
  if not ref then
    return 0
  end
  local cursor, cause = redis.call('HGET', telling, ref):match('^(%d+)\n(.*)$')
  local prefix, job_id = L.record.split(ref)
  -- A failure that a retry has undone in the meantime blocks nobody.
  if cause ~= '' and redis.call('HGET', prefix .. 'job:' .. job_id, 'state') ~= 'failed' then
    redis.call('HDEL', telling, ref)
    return redis.call('HLEN', telling)
  end
  local page = redis.call('SSCAN', prefix .. 'parents:' .. job_id, cursor, 'COUNT', SLICE)
  for _, dependent in ipairs(page[2]) do
    tell(key, ref, dependent, cause ~= '' and cause or nil, now)
  end
  if page[1] == '0' then
    redis.call('HDEL', telling, ref)
  else
    redis.call('HSET', telling, ref, page[1] .. '\n' .. cause)
  end
  return redis.call('HLEN', telling)
end
