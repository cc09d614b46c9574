-- jobs: creating, routing, reading and deleting job hashes.

local M = {}
L.jobs = M

local LIFE = {
  'id', 'name', 'state', 'expireAt', 'processedOn', 'lastActive', 'groupKey', 'orderingSeq', 'orderingKey',
  'groupSlot', 'priority', 'lifo', 'activeSource', 'revoked', 'cost', 'timestamp',
}

-- What the life cycle needs of a job, in one read; nil when the hash is missing.
-- Payload, options and results are left out: they may be large.
function M.read(prefix, job_id)
  local values = redis.call('HMGET', prefix .. 'job:' .. job_id, unpack(LIFE))
  local job, found = {}, false
  for i = 1, #LIFE do
    if values[i] then
      job[LIFE[i]], found = values[i], true
    end
  end
  return found and job or nil
end

function M.state(job)
  if job.delay > 0 then
    return 'delayed'
  end
  return job.priority > 0 and 'prioritized' or 'waiting'
end

-- Fields of `job`: prefix id name data opts timestamp delay priority max_attempts; optional: group_key
-- ordering_seq cost expire_at parent_id parent_queue scheduler_name lifo state, and `extra` (flat pairs).
function M.write(job)
  local text = L.numbers.text
  local pairs_ = {
    'id', job.id, 'name', job.name, 'data', job.data, 'opts', job.opts, 'timestamp', text(job.timestamp),
    'attemptsMade', '0', 'delay', text(job.delay), 'priority', text(job.priority),
    'maxAttempts', text(job.max_attempts),
  }
  local n = #pairs_
  local function add(field, value)
    pairs_[n + 1], pairs_[n + 2] = field, value
    n = n + 2
  end
  if job.group_key then
    add('groupKey', job.group_key)
    add('orderingSeq', text(job.ordering_seq))
  end
  if job.cost and job.cost > 0 then
    add('cost', text(job.cost))
  end
  if job.expire_at then
    add('expireAt', text(job.expire_at))
  end
  if job.parent_id and job.parent_id ~= '' then
    add('parentId', job.parent_id)
    if job.parent_queue and job.parent_queue ~= '' then
      add('parentQueue', job.parent_queue)
    end
  end
  if job.scheduler_name and job.scheduler_name ~= '' then
    add('schedulerName', job.scheduler_name)
  end
  if job.lifo then
    add('lifo', '1')
  end
  for i = 1, #(job.extra or {}), 2 do
    add(job.extra[i], job.extra[i + 1])
  end
  add('state', job.state or M.state(job))
  redis.call('HSET', job.prefix .. 'job:' .. job.id, unpack(pairs_))
end

-- Puts a new job where its delay, priority and order say. Takes the fields of `write`.
function M.route(job)
  if job.delay > 0 then
    local due = L.numbers.score(job.priority, job.timestamp + job.delay)
    redis.call('ZADD', job.prefix .. 'scheduled', due, job.id)
  elseif job.priority > 0 then
    redis.call('ZADD', job.prefix .. 'scheduled', L.numbers.score(job.priority, 0), job.id)
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

-- Writes a final failure: the failed set and the job hash. Extra pairs may follow.
function M.set_failed(prefix, job_id, reason, now, ...)
  redis.call('ZADD', prefix .. 'failed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'failed', 'failedReason', reason,
    'finishedOn', L.numbers.text(now), ...)
end

-- Deletes a job with everything that belongs to it alone.
function M.unlink(prefix, job_id)
  redis.call('UNLINK', prefix .. 'job:' .. job_id, prefix .. 'log:' .. job_id, prefix .. 'deps:' .. job_id,
    prefix .. 'parents:' .. job_id, prefix .. 'jstream:' .. job_id, prefix .. 'signals:' .. job_id)
end

-- Milliseconds since the job was activated; `missing` when it was not.
function M.duration(job, now, missing)
  return now - L.numbers.int(job.processedOn, now - (missing or 0))
end
