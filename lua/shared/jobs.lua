-- jobs: creating, routing, reading and deleting job hashes.

local M = {}
L.jobs = M

-- The fields of a job for its life cycle, in one read; nil when the hash is missing. Omits payload, options and
-- results, which may be large. Spelled out, since a table that grows field by field costs more than the read.
function M.read(prefix, job_id)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'id', 'name', 'state', 'expireAt', 'processedOn',
    'lastActive', 'groupKey', 'orderingSeq', 'orderingKey', 'groupSlot', 'priority', 'lifo', 'activeSource',
    'revoked', 'cost', 'timestamp')
  if not (v[3] or v[1] or v[2]) then
    return nil
  end
  return {
    id = v[1] or nil, name = v[2] or nil, state = v[3] or nil, expireAt = v[4] or nil,
    processedOn = v[5] or nil, lastActive = v[6] or nil, groupKey = v[7] or nil, orderingSeq = v[8] or nil,
    orderingKey = v[9] or nil, groupSlot = v[10] or nil, priority = v[11] or nil, lifo = v[12] or nil,
    activeSource = v[13] or nil, revoked = v[14] or nil, cost = v[15] or nil, timestamp = v[16] or nil,
  }
end

-- The part of it for finishing.
function M.read_to_finish(prefix, job_id)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'id', 'state', 'processedOn', 'priority', 'groupKey',
    'orderingSeq', 'orderingKey', 'groupSlot')
  if not (v[2] or v[1]) then
    return nil
  end
  return {
    id = v[1] or nil, state = v[2] or nil, processedOn = v[3] or nil, priority = v[4] or nil,
    groupKey = v[5] or nil, orderingSeq = v[6] or nil, orderingKey = v[7] or nil, groupSlot = v[8] or nil,
  }
end

function M.state(job)
  if job.delay > 0 then
    return 'delayed'
  end
  return job.priority > 0 and 'prioritized' or 'waiting'
end

-- The optional fields of a job, in their order on the wire; state comes last.
local function optional(job)
  local state = job.state or M.state(job)
  local has_cost, parent_id = job.cost and job.cost > 0, job.parent_id or ''
  local scheduler = job.scheduler_name or ''
  if not (job.group_key or has_cost or job.expire_at or job.lifo) and parent_id == '' and scheduler == '' then
    return 'state', state
  end
  local more = {}
  local function add(field, value)
    more[#more + 1], more[#more + 2] = field, value
  end
  if job.group_key then
    add('groupKey', job.group_key)
    add('orderingSeq', L.numbers.text(job.ordering_seq))
  end
  if has_cost then
    add('cost', L.numbers.text(job.cost))
  end
  if job.expire_at then
    add('expireAt', L.numbers.text(job.expire_at))
  end
  if parent_id ~= '' then
    add('parentId', parent_id)
    if job.parent_queue and job.parent_queue ~= '' then
      add('parentQueue', job.parent_queue)
    end
  end
  if scheduler ~= '' then
    add('schedulerName', scheduler)
  end
  if job.lifo then add('lifo', '1') end
  add('state', state)
  return unpack(more)
end

-- Fields of `job`: prefix id name data opts timestamp delay priority max_attempts; optional: group_key
-- ordering_seq cost expire_at parent_id parent_queue scheduler_name lifo state; skip_tags: the caller lists its tags.
function M.write(job)
  local text = L.numbers.text
  redis.call('HSET', job.prefix .. 'job:' .. job.id, 'id', job.id, 'name', job.name, 'data', job.data,
    'opts', job.opts, 'timestamp', text(job.timestamp), 'attemptsMade', '0', 'delay', text(job.delay),
    'priority', text(job.priority), 'maxAttempts', text(job.max_attempts), optional(job))
  if not job.skip_tags then L.tags.adopt(job.prefix, job.id, job.opts, text(job.timestamp)) end
end

-- Puts a new job into its place by delay, priority and order. Takes the fields of `write`.
function M.route(job)
  if job.delay > 0 then
    L.priorities.schedule(job.prefix .. 'scheduled', job.id, job.priority, job.timestamp + job.delay)
  elseif job.priority > 0 then
    L.priorities.schedule(job.prefix .. 'scheduled', job.id, job.priority, 0)
  elseif job.lifo then
    redis.call('RPUSH', job.prefix .. 'lifo', job.id)
  else
    L.stream.append(job.prefix .. 'stream', job.id, job.name)
  end
end

-- Makes a job that waited for its time ready: LIFO list, priority list or stream.
function M.make_ready(prefix, job_id, job, priority, retry_group)
  if job.lifo == '1' then
    redis.call('RPUSH', prefix .. 'lifo', job_id)
  elseif priority > 0 then
    redis.call('LPUSH', prefix .. 'priority', job_id)
  else
    L.stream.append(prefix .. 'stream', job_id, job.name, retry_group)
  end
end

-- Removes the entry of a waiting job from the stream; false when it has none. A job in one of the lists has none, and
-- checking the list is much cheaper than searching the stream.
function M.remove_entry(prefix, stream_key, group, job_id, job, limit)
  local list = job.lifo == '1' and 'lifo' or L.numbers.int(job.priority, 0) > 0 and 'priority'
  if list and redis.call('LPOS', prefix .. list, job_id) then
    return false
  end
  return L.stream.remove_job(stream_key, group, job_id, job.timestamp, limit)
end

-- Writes a final failure: the failed set and the job hash. Extra pairs may follow.
function M.set_failed(prefix, job_id, reason, now, ...)
  redis.call('ZADD', prefix .. 'failed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'failed', 'failedReason', reason,
    'finishedOn', L.numbers.text(now), ...)
end

-- Whether the key of a job is not a hash; then it can neither run nor have a state.
function M.is_broken(prefix, job_id)
  return type(redis.pcall('HEXISTS', prefix .. 'job:' .. job_id, 'id')) ~= 'number'
end

-- Lists a broken job among the failed ones, so that it is not processed again. False for a job that is not broken.
function M.bury(prefix, job_id, now)
  if not M.is_broken(prefix, job_id) then
    return false
  end
  redis.call('ZADD', prefix .. 'failed', now, job_id)
  L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', 'its key is not a hash')
  return true
end

-- Whether the options are those of a node of a flow of the portable path.
function M.is_portable(opts)
  return opts and (string.find(opts, '"gmo":{"flow"', 1, true) or string.find(opts, '"gmo": {"flow"', 1, true)) and true
    or false
end

-- Deletes a job and the keys that belong only to it.
function M.erase(prefix, job_id)
  L.tags.forget(prefix, job_id)
  L.array_keys.forget(prefix, job_id, true)
  redis.call('UNLINK', prefix .. 'job:' .. job_id, prefix .. 'log:' .. job_id, prefix .. 'deps:' .. job_id,
    prefix .. 'parents:' .. job_id, prefix .. 'jstream:' .. job_id, prefix .. 'signals:' .. job_id,
    prefix .. 'budget:' .. job_id)
end

-- Fields that a flow does not need to rerun a node; fresh.lua has the rest.
local OF_A_LIFE = { 'id', 'name', 'state', 'attemptsMade', 'failedReason', 'finishedOn', 'processedOn', 'lastActive',
  'returnvalue', 'progress', 'gmo:token', 'gmo:entry', 'groupKey', 'orderingSeq', 'groupSlot', 'stalledCount', 'gmo:cut',
  'gmo:history', 'gmo:until' }

-- Whether the flow of a node exists, which may rerun it. A portable flow may be in another slot.
local function has_flow(flow_id, home, opts)
  if flow_id and home then
    return redis.call('EXISTS', home .. 'gmo:flow:' .. flow_id) == 1
  end
  return M.is_portable(opts)
end

-- Deletes a job. The definition of a node stays until its flow is removed: no longer a job, as it has no state, but its
-- data, options and edges; and the field gmo:removed, "<how it had ended, or its state>\n<name of the job>".
function M.unlink(prefix, job_id)
  local key = prefix .. 'job:' .. job_id
  local v = redis.pcall('HMGET', key, 'gmo:flow', 'state', 'gmo:skipped', 'name', 'opts', 'gmo:home')
  if v.err or not has_flow(v[1], v[6], v[5]) then
    M.erase(prefix, job_id)
  elseif v[2] then
    L.tags.forget(prefix, job_id)
    L.array_keys.forget(prefix, job_id)
    redis.call('HSET', key, 'gmo:removed', (v[3] and 'skipped' or v[2]) .. '\n' .. (v[4] or ''))
    redis.call('HDEL', key, unpack(OF_A_LIFE))
    redis.call('UNLINK', prefix .. 'log:' .. job_id, prefix .. 'jstream:' .. job_id, prefix .. 'signals:' .. job_id)
  end
end

-- Recreates the job of a node that was removed in this way, as ended; returns whether it was.
function M.restore(prefix, job_id)
  local key = prefix .. 'job:' .. job_id
  local ended, name = string.match(redis.call('HGET', key, 'gmo:removed') or '', '^(%a+)\n(.*)$')
  if not ended then
    return false
  end
  redis.call('HSET', key, 'id', job_id, 'name', name, 'state', ended == 'failed' and 'failed' or 'completed')
  redis.call('HDEL', key, 'gmo:removed')
  L.tags.relist(prefix, job_id)
  return true
end
