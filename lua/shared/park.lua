-- park: an active job leaves its worker before it is finished: until a signal, until its children are done, or until
-- a later time. Jobs here are what `L.jobs.read` returns; `p` has prefix job_id entry_id group now, and broadcast.

local M = {}
L.park = M

-- The job when it is active; else nil and the reply with the reason.
function M.active_job(prefix, job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job then
    return nil, 'error:not_found'
  elseif job.state ~= 'active' then
    return nil, 'error:not_active'
  end
  return job, nil
end

-- Ordered jobs keep their slot while they wait; all others release it.
function M.release_unordered(prefix, job, now)
  if L.numbers.int(job.orderingSeq, 0) <= 0 then
    L.groups.leave(prefix, job, now)
  end
end

function M.release_list_slot(prefix, entry_id)
  if entry_id == '' then
    L.list_active.release(prefix .. 'list-active')
  end
end

local NO_DEADLINE = 9999999999999

local function let_go(p, job)
  M.release_list_slot(p.prefix, p.entry_id)
  M.release_unordered(p.prefix, job, p.now)
end

-- p: also reason, timeout (ms, 0 = none) and, where the caller names them, suspended_key and events_key.
function M.suspend(p, job)
  local key, fields = p.prefix .. 'job:' .. p.job_id, { 'state', 'suspended', 'suspendedAt', L.numbers.text(p.now) }
  if p.reason ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'suspendReason', p.reason
  end
  if p.timeout > 0 then
    fields[#fields + 1], fields[#fields + 2] = 'suspendTimeout', L.numbers.text(p.timeout)
  end
  L.stream.ack(p.prefix .. 'stream', p.group, p.entry_id, p.broadcast)
  redis.call('HSET', key, unpack(fields))
  redis.call('ZADD', p.suspended_key or p.prefix .. 'suspended', p.timeout > 0 and p.now + p.timeout or NO_DEADLINE,
    p.job_id)
  let_go(p, job)
  L.events.emit(p.events_key or p.prefix .. 'events', 'suspended', p.job_id)
end

-- Returns true when all children were done and the job is ready again.
function M.await_children(p, job)
  local key = p.prefix .. 'job:' .. p.job_id
  local events_key = p.events_key or p.prefix .. 'events'
  L.stream.ack(p.prefix .. 'stream', p.group, p.entry_id, p.broadcast)
  redis.call('HSET', key, 'state', 'waiting-children')
  let_go(p, job)
  local total = redis.call('SCARD', p.prefix .. 'deps:' .. p.job_id)
  if total > 0 and L.numbers.int(redis.call('HGET', key, 'depsCompleted'), 0) >= total then
    L.parents.wake(key, p.stream_key or p.prefix .. 'stream', events_key, p.job_id, job.name)
    return true
  end
  L.events.emit(events_key, 'waiting-children', p.job_id)
  return false
end

-- p: also due (ms since the epoch), data ('' = keep).
function M.postpone(p, job)
  local key, delay = p.prefix .. 'job:' .. p.job_id, L.numbers.text(p.due - p.now)
  L.stream.ack(p.prefix .. 'stream', p.group, p.entry_id, p.broadcast)
  L.priorities.schedule(p.scheduled_key or p.prefix .. 'scheduled', p.job_id, L.numbers.int(job.priority, 0), p.due)
  if p.data ~= '' then
    redis.call('HSET', key, 'data', p.data, 'state', 'delayed', 'delay', delay)
  else
    redis.call('HSET', key, 'state', 'delayed', 'delay', delay)
  end
  let_go(p, job)
  L.events.emit(p.events_key or p.prefix .. 'events', 'delay-changed', p.job_id, 'delay', delay)
end

local TIMED_OUT = 'Suspend timeout exceeded'

local function time_out(p, job_id, job)
  L.jobs.set_failed(p.prefix, job_id, TIMED_OUT, p.now, 'processedOn', L.numbers.text(p.now))
  L.ordering.mark_done(p.prefix, job.orderingKey, job.orderingSeq)
  L.groups.leave(p.prefix, job, p.now)
  L.events.emit(p.events_key or p.prefix .. 'events', 'failed', job_id, 'failedReason', TIMED_OUT)
  L.metrics.record(p.metrics_key or p.prefix .. 'metrics:failed', p.now, L.metrics.duration(job, p.now))
end

-- Fails suspended jobs past their deadline, at most `most`; returns how many. p: prefix now; where the caller names them
-- suspended_key, events_key and metrics_key. `on_failed`, if given, is called for each with its reason.
function M.expire(p, most, on_failed)
  local key, count = p.suspended_key or p.prefix .. 'suspended', 0
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', key, 0, p.now, 'LIMIT', 0, most)) do
    local job = L.jobs.read(p.prefix, job_id)
    redis.call('ZREM', key, job_id)
    if job and job.state == 'suspended' then
      time_out(p, job_id, job)
      count = count + 1
      if on_failed then
        on_failed(job_id, TIMED_OUT)
      end
    end
  end
  return count
end
