-- Ends nodes that no worker runs, or no longer runs: because of others, by a cancel, by hand.
L.end_nodes = {}

-- Removes a node from every place where a worker could start it, and from a worker that runs it.
function L.end_nodes.withdraw(prefix, job_id, now)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:entry', 'gmo:placed', 'gmo:array')
  local entry = v[1] and v[1] ~= '' and v[1] or nil
  if v[3] then
    L.arrays.close(prefix, job_id, now)
  elseif v[2] then
    local job = L.jobs.read(prefix, job_id)
    L.remove.take_out(prefix, job_id, job, entry, 0)
    redis.call('ZREM', prefix .. 'gmo:list-held', job_id)
    L.groups.leave(prefix, job, now)
  else
    if entry then
      redis.call('XACK', prefix .. 'stream', 'workers', entry)
      redis.call('XDEL', prefix .. 'stream', entry)
    end
    L.priorities.unschedule(prefix, job_id)
  end
end

-- Recreates the job of a node that was removed before it ended. If it was removed completely, the field gmo:gone marks
-- that it can only end.
local function ensure(flow, prefix, job_id)
  local key = prefix .. 'job:' .. job_id
  if redis.call('HEXISTS', key, 'state') == 0 and not L.jobs.restore(prefix, job_id) then
    redis.call('HSET', key, 'id', job_id, 'name', '', 'gmo:flow', flow.id, 'gmo:home', flow.home, 'gmo:node', flow.node,
      'gmo:gone', '1')
  end
end

-- Ends a node as failed that is not running, or no longer.
function L.end_nodes.fail(flow, ref, reason, now)
  local prefix, job_id = L.record.split(ref)
  ensure(flow, prefix, job_id)
  L.end_nodes.withdraw(prefix, job_id, now)
  L.jobs.set_failed(prefix, job_id, reason, now)
  L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', reason)
  L.settle.ended(flow, ref, 'failed', reason, now)
end

-- The same for a node whose dependents are not notified yet.
function L.end_nodes.fail_and_notify(flow, ref, reason, now)
  local prefix, job_id = L.record.split(ref)
  L.dependents.notify(flow, prefix, job_id, now, L.settle.failure(flow))
  L.end_nodes.fail(flow, ref, reason, now)
end

-- Ends a node as completed that no worker runs.
function L.end_nodes.complete(flow, ref, result, now)
  local prefix, job_id = L.record.split(ref)
  L.end_nodes.withdraw(prefix, job_id, now)
  redis.call('ZADD', prefix .. 'completed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'completed', 'returnvalue', result, 'finishedOn',
    L.numbers.text(now))
  L.events.emit(prefix .. 'events', 'completed', job_id, 'returnvalue', result)
  L.settle.ended(flow, ref, 'completed', '', now)
end

-- Ends a node as skipped; a retry does not run it.
function L.end_nodes.skip_for_good(flow, ref, reason, now)
  local prefix, job_id = L.record.split(ref)
  ensure(flow, prefix, job_id)
  L.end_nodes.withdraw(prefix, job_id, now)
  redis.call('ZADD', prefix .. 'completed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'completed', 'returnvalue', 'null', 'gmo:skipped', reason,
    'finishedOn', L.numbers.text(now))
  L.events.emit(prefix .. 'events', 'completed', job_id, 'returnvalue', 'null', 'skipped', reason)
  L.settle.ended(flow, ref, 'skipped', reason, now)
end

-- Ends a node as skipped because of others; a retry runs it.
function L.end_nodes.skip(flow, ref, reason, now)
  redis.call('SADD', L.record.key(flow.home, flow.id) .. ':failed', ref)
  L.end_nodes.skip_for_good(flow, ref, reason, now)
end
