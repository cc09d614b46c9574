-- due: deadlines, in <home>gmo:due (zset, ms since the epoch):
--   flow\n<flow id>   the flow fails unless it has ended
--   node\n<ref>       the node fails unless a worker has started it
L.due = {}

-- Sets the deadline of a node.
function L.due.node(home, ref, at)
  redis.call('ZADD', home .. 'gmo:due', at, 'node\n' .. ref)
end

-- Whether a worker has begun the job of a node, so that it has met its queue timeout: it runs, waits to continue or for
-- its next attempt, or its worker died. The same rule as `job_now` in flows/node_table.py.
function L.due.has_begun(job_key)
  local v = redis.call('HMGET', job_key, 'processedOn', 'stalledCount', 'gmo:begun', 'attemptsMade')
  return (v[1] and v[1] ~= '') or v[2] or v[3] or L.numbers.int(v[4], 0) > 0
end

-- Removes the deadline of a removed node.
function L.due.forget(home, ref)
  redis.call('ZREM', home .. 'gmo:due', 'node\n' .. ref)
end

-- Sets the deadline of a flow that starts or restarts now.
function L.due.flow(home, flow_id, now)
  local deadline = redis.call('HGET', L.record.key(home, flow_id), 'deadline')
  if deadline then
    redis.call('ZADD', home .. 'gmo:due', now + L.numbers.int(deadline, 0), 'flow\n' .. flow_id)
  end
end

-- Removes the deadline of a flow that has ended.
function L.due.ended(home, flow_id)
  redis.call('ZREM', home .. 'gmo:due', 'flow\n' .. flow_id)
end
