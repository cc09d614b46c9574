-- The end of nodes and of flows: counts, causes, and the event that wakes whoever waits.
-- EVENT flow.completed | flow.failed | flow.cancelled  {flowId}  on the events stream of the home queue
L.settle = {}

local function close(home, flow, key, now)
  local marks = redis.call('HMGET', key, 'cancel', 'failed')
  local state = 'completed'
  if marks[1] then
    state = 'cancelled'
  elseif (tonumber(marks[2]) or 0) > 0 then
    state = 'failed'
  end
  redis.call('HSET', key, 'state', state, 'finished_at', now)
  redis.call('UNLINK', key .. ':ready', key .. ':blocked')
  redis.call('SREM', home .. 'gmo:todo', flow)
  L.index.moved(home, flow, 'running', state, now)
  L.events.emit(home .. 'events', 'flow.' .. state, '', 'flowId', flow)
end

-- Ends the flow when all its nodes have ended and none are about to join it.
function L.settle.end_if_over(flow, key, now)
  if redis.call('SCARD', key .. ':open') == 0 and L.grow.is_over(key) then
    close(flow.home, flow.id, key, now)
  end
end

-- Counts the end of one node once, however often it is reported.
function L.settle.ended(flow, ref, outcome, reason, now)
  local key = L.record.key(flow.home, flow.id)
  if redis.call('SREM', key .. ':open', ref) == 0 then
    return
  end
  redis.call('HINCRBY', key, outcome, 1)
  if outcome == 'failed' then
    redis.call('SADD', key .. ':failed', ref)
    redis.call('HSETNX', key, 'reason', flow.node .. ': ' .. reason)
  end
  L.settle.end_if_over(flow, key, now)
end

-- Ends a node that is not running (any more) as failed: out of every place that could start it.
function L.settle.fail_node(flow, ref, reason, now)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  local entry = redis.call('HGET', job_key, 'gmo:entry')
  if entry then
    redis.call('XACK', prefix .. 'stream', 'workers', entry)
    redis.call('XDEL', prefix .. 'stream', entry)
  end
  redis.call('ZREM', prefix .. 'scheduled', job_id)
  redis.call('ZADD', prefix .. 'failed', now, job_id)
  redis.call('HSET', job_key, 'state', 'failed', 'failedReason', reason, 'finishedOn', now)
  L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', reason)
  L.settle.ended(flow, ref, 'failed', reason, now)
end

-- A node has completed: its dependents are told, and its end is counted. Returns the id of its flow if that needs
-- gmo_advance_flow, else ''.
function L.settle.job_completed(flow, prefix, job_id, now)
  local is_unfinished = L.grow.commit(flow, prefix, job_id, now) or L.release.dependents(flow, prefix, job_id, now)
  L.settle.ended(flow, prefix .. job_id, 'completed', '', now)
  return is_unfinished and flow.id or ''
end

-- A job has failed for good. Returns the id of its flow if that needs gmo_advance_flow, else ''.
function L.settle.job_failed(prefix, job_id, reason, now)
  local flow = L.record.of_job(prefix, job_id)
  if not flow then
    return ''
  end
  L.grow.abandon(flow, job_id)
  L.release.dependents(flow, prefix, job_id, now, flow.node)
  L.settle.ended(flow, prefix .. job_id, 'failed', reason, now)
  return L.advance.slice(flow.home, flow.id, now) > 0 and flow.id or ''
end
