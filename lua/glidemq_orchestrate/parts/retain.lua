-- Removing flows. The jobs and tables of a flow with a retention are removed that long after its end; a tombstone
-- stays: its record with the field expired_at, for a time that the sweep sets. Flows that were staged and never
-- started are removed completely, and so are nodes that were staged by attempts that did not complete.
L.retain = {}
local SLICE, LATER = 50, 3600 * 1000
local TABLES = { 'nodes', 'order', 'open', 'ready', 'roots', 'failed', 'again', 'giving', 'staying', 'passed', 'blocked', 'notifying', 'growing', 'carried', 'owners' }

-- An error reply when there is no flow, only its tombstone, or another generation has begun; else nil.
function L.retain.refusal(key, flow_id)
  local found = redis.call('HMGET', key, 'id', 'expired_at')
  if not found[1] then
    return L.record.not_found(flow_id)
  end
  local superseded = L.generations.refusal(key, flow_id)
  if superseded then
    return superseded
  end
  if found[2] then
    return redis.error_reply('GMO_FLOW_EXPIRED the jobs of flow ' .. L.generations.split(flow_id)
      .. ' were removed after its retention'
      .. '. Fix: glidemq flow submit FILE --id ID --restart (on_existing="restart")')
  end
end

-- Removes the job of a node, unless it belongs to another flow, or to another generation of this one.
local function remove_job(ref, flow_id)
  local prefix, job_id = L.record.split(ref)
  local owner = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:flow')
  if owner and owner ~= flow_id then
    return
  end
  L.jobs.erase(prefix, job_id)
  L.dependents.forget(prefix, job_id)
  redis.call('ZREM', prefix .. 'completed', job_id)
  redis.call('ZREM', prefix .. 'failed', job_id)
end

-- Removes a slice of the nodes: their jobs and their entries in the tables. Returns how many nodes remain.
local function remove_nodes(key, flow_id)
  local start, home = key:match('^(.*):{[^{}]*}:gmo:flow:'), L.record.home(key, flow_id)
  local page = redis.call('HRANDFIELD', key .. ':nodes', SLICE, 'WITHVALUES')
  for i = 1, #page, 2 do
    local queue, job_id = L.stage.place(page[i + 1])
    local ref = start .. ':{' .. queue .. '}:' .. job_id
    remove_job(ref, flow_id)
    L.due.forget(home, ref)
    -- From the tables too, so that a submission before the last slice stages the node again.
    redis.call('HDEL', key .. ':nodes', page[i])
    redis.call('SREM', key .. ':open', ref)
    redis.call('SREM', key .. ':ready', ref)
  end
  if #page == 0 then -- nodes with only some edges staged
    for _, ref in ipairs(redis.call('SPOP', key .. ':open', SLICE)) do
      remove_job(ref, flow_id)
    end
    L.generations.forget_carried(key)
  end
  return math.max(redis.call('HLEN', key .. ':nodes'), redis.call('SCARD', key .. ':open'), redis.call('LLEN', key .. ':carried'))
end
local function unlink_tables(key)
  for _, name in ipairs(TABLES) do
    redis.call('UNLINK', key .. ':' .. name)
  end
end

-- Deletes a slice of a flow that never started; returns how many nodes remain.
local function discard(key, home, flow_id)
  local left = remove_nodes(key, flow_id)
  if left == 0 then
    L.index.removed(home, flow_id)
    unlink_tables(key)
    redis.call('SREM', home .. 'gmo:todo', flow_id)
    redis.call('UNLINK', key)
  end
  return left
end

L.retain.LATER = LATER
L.retain.remove_nodes = remove_nodes
L.retain.unlink_tables = unlink_tables
L.retain.discard = discard
