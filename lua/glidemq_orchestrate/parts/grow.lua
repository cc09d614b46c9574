-- Growth: nodes that are added to a flow while it runs, by one of its nodes or from outside. They are staged first,
-- neither started nor counted, and join the flow together: those of a node when it completes.
--   <home>gmo:grow:<growth id>         hash: node name -> "<batch>\n<table JSON>\n<ref>", staged
--   <home>gmo:grow:<growth id>:held    list of JSON [batch, new ref, old ref, name of the new]: old nodes that wait
--                                      for new ones; added before the other edges, which let new ones run
--   <home>gmo:grow:<growth id>:edges   list of JSON [batch, old ref, new ref]: new nodes that wait for old ones
--   <home>gmo:grow:<growth id>:meta    hash: flow, ref and token of the attempt; new:<batch>, chunk:<batch>:<n>,
--                                      chunks:<batch>, sealed:<batch>; count = nodes of sealed batches
--   <home>gmo:growing                  zset: "<growth id>\n<flow id>" -> when nodes were last staged
--   <flow>:growing                     set of growth ids that are joining, slice by slice; the flow ends after them
-- The growth id of a node is its job id. Added nodes without dependencies depend on the node that adds them. Its
-- dependents are notified last, so that no added node runs before all of them are in the flow.
L.grow = {}
local SLICE = 50

-- The key of the staged nodes.
function L.grow.key(home, growth)
  return home .. 'gmo:grow:' .. growth
end

-- The parts of a staged row: batch, table JSON ('' for a piece of a node), ref.
function L.grow.row(value)
  return value:match('^([^\n]*)\n([^\n]*)\n(.*)$')
end

-- Removes the tables of a growth.
function L.grow.forget(home, growth, flow_id)
  local key = L.grow.key(home, growth)
  redis.call('UNLINK', key, key .. ':held', key .. ':edges', key .. ':meta')
  redis.call('ZREM', home .. 'gmo:growing', growth .. '\n' .. flow_id)
end

-- Removes a staged node with its job.
function L.grow.unlink_row(key, name, ref)
  L.jobs.erase(L.record.split(ref))
  redis.call('HDEL', key, name)
end

-- Removes a slice of the staged nodes of a growth that is not joining; returns how many nodes remain.
function L.grow.drop(home, growth, flow_id)
  local key = L.grow.key(home, growth)
  if redis.call('SISMEMBER', L.record.key(home, flow_id) .. ':growing', growth) == 1 then
    return 0
  end
  local page = redis.call('HRANDFIELD', key, SLICE, 'WITHVALUES')
  for i = 1, #page, 2 do
    local _, _, ref = L.grow.row(page[i + 1])
    L.grow.unlink_row(key, page[i], ref)
  end
  local left = redis.call('HLEN', key)
  if left == 0 then
    L.grow.forget(home, growth, flow_id)
  end
  return left
end

-- Makes nodes staged by a failed attempt due for the sweep immediately.
function L.grow.abandon(flow, job_id)
  redis.call('ZADD', flow.home .. 'gmo:growing', 'XX', 0, job_id .. '\n' .. flow.id)
end

-- Removes a slice of an abandoned growth, for gmo_sweep; returns whether there was a growth to check.
function L.grow.sweep(home, before)
  local member = redis.call('ZRANGEBYSCORE', home .. 'gmo:growing', '-inf', before, 'LIMIT', 0, 1)[1]
  if not member then
    return false
  end
  local growth, flow_id = member:match('^([^\n]*)\n(.*)$')
  local meta = redis.call('HMGET', L.grow.key(home, growth) .. ':meta', 'ref', 'token')
  if meta[1] and meta[2] then
    local prefix, job_id = L.record.split(meta[1])
    local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:token')
    if job[1] == 'active' and job[2] == meta[2] then -- a long attempt: check again in a minute
      redis.call('ZADD', home .. 'gmo:growing', tonumber(before) + 60000, member)
      return true
    end
  end
  L.grow.drop(home, growth, flow_id)
  return true
end
