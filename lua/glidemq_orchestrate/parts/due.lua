-- due: times by which something must have happened, in <home>gmo:due (zset, ms since the epoch):
--   flow\n<flow id>   the flow has ended, else it fails
--   node\n<ref>       a worker has begun the node, else it fails
L.due = {}
function L.due.node(home, ref, at)
  redis.call('ZADD', home .. 'gmo:due', at, 'node\n' .. ref)
end

-- The flow begins, or begins again: its time runs from now.
function L.due.flow(home, flow_id, now)
  local deadline = redis.call('HGET', L.record.key(home, flow_id), 'deadline')
  if deadline then
    redis.call('ZADD', home .. 'gmo:due', now + L.numbers.int(deadline, 0), 'flow\n' .. flow_id)
  end
end
function L.due.ended(home, flow_id)
  redis.call('ZREM', home .. 'gmo:due', 'flow\n' .. flow_id)
end
