-- The end of nodes and of flows: counts, reasons, and the event that wakes waiting clients.
-- EVENT flow.completed | flow.failed | flow.cancelled  {flowId, generation after the first}  on the events stream of the
-- home queue
L.settle = {}
local SEARCHED = 50

-- A reason for a flow in which nodes other than the failed ones were rerun.
local function reason_of_any(key)
  for _, ref in ipairs(redis.call('SRANDMEMBER', key .. ':failed', SEARCHED)) do
    local prefix, job_id = L.record.split(ref)
    local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:node', 'failedReason', 'gmo:on_failure')
    if v[2] and v[2] ~= '' and v[3] ~= 'ignore' then
      return (v[1] or job_id) .. ': ' .. v[2]
    end
  end
  return ''
end

-- Ends a running flow in the state that follows from its marks and counts.
local function close(home, flow, key, now)
  local marks = redis.call('HMGET', key, 'cancel', 'failed', 'ignored', 'state')
  if marks[4] ~= 'running' then
    return
  end
  local state = 'completed'
  if marks[1] then
    state = marks[1] == 'failed' and 'failed' or 'cancelled'
  elseif (tonumber(marks[2]) or 0) > (tonumber(marks[3]) or 0) then
    state = 'failed'
  end
  if state == 'failed' and redis.call('HEXISTS', key, 'reason') == 0 then
    redis.call('HSET', key, 'reason', reason_of_any(key))
  end
  redis.call('HSET', key, 'state', state, 'finished_at', now)
  redis.call('UNLINK', key .. ':ready', key .. ':roots', key .. ':blocked')
  redis.call('SREM', home .. 'gmo:todo', flow)
  L.due.ended(home, flow)
  L.owners.ended(home, flow)
  L.index.moved(home, flow, 'running', state, now)
  L.flow_events.emit(home, 'flow.' .. state, flow)
end

-- Ends the flow when all its nodes have ended and none is about to join it or to rerun.
function L.settle.end_if_done(flow, key, now)
  if redis.call('SCARD', key .. ':open') == 0 and L.join.has_joined(key) and redis.call('HEXISTS', key, 'retry') == 0 then
    close(flow.home, flow.id, key, now)
  end
end

-- Marks the flow so that gmo_advance_flow ends its open nodes. `state`: its final state. False: it was stopped before.
-- Nothing ends before the time of the stop, even if that call was made before it and has arrived late.
function L.settle.stop(home, flow_id, state, reason, now)
  local key = L.record.key(home, flow_id)
  if redis.call('HSETNX', key, 'cancel', state) == 0 then
    return false
  end
  redis.call('HSET', key, 'reason', reason, 'stopped_at', now)
  redis.call('HDEL', key, 'retry')
  redis.call('UNLINK', key .. ':again', key .. ':giving', key .. ':staying', key .. ':passed')
  redis.call('SADD', home .. 'gmo:todo', flow_id)
  return true
end

-- Cancels a staged or running flow: gmo_advance_flow ends its nodes. An ended flow is not changed.
function L.settle.cancel(home, flow_id, reason, now)
  local key = L.record.key(home, flow_id)
  local state = redis.call('HGET', key, 'state')
  if state ~= 'running' and state ~= 'staging' then
    return
  end
  if L.settle.stop(home, flow_id, 'cancelled', reason, now) then
    redis.call('HSET', key, 'state', 'running')
    L.index.moved(home, flow_id, state, 'running', now)
  end
end

-- Records the failure of a node. An ignored failure does not count; the first other one is the flow's reason, and may
-- stop it.
local function note_failure(flow, key, ref, reason, now)
  local prefix, job_id = L.record.split(ref)
  if redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:on_failure') == 'ignore' then
    L.hashes.add(key, 'ignored', 1)
    return
  end
  local text = flow.node .. ': ' .. reason
  redis.call('HSETNX', key, 'reason', text)
  if redis.call('HGET', key, 'fail_fast') then
    L.settle.stop(flow.home, flow.id, 'failed', text, now)
  end
end

-- Counts the end of one node once, however often it is reported. A retry of the flow reruns failed nodes, and those
-- skipped because of others, but not those skipped by their handler. The field gmo:end stays when a late Node worker
-- completes the job.
function L.settle.ended(flow, ref, outcome, reason, now)
  local key = L.record.key(flow.home, flow.id)
  if redis.call('SREM', key .. ':open', ref) == 0 then
    return
  end
  L.hashes.add(key, outcome, 1)
  if outcome == 'failed' then
    local prefix, job_id = L.record.split(ref)
    redis.call('SADD', key .. ':failed', ref)
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:end', 'failed')
    note_failure(flow, key, ref, reason, now)
  end
  L.settle.end_if_done(flow, key, now)
end

-- The notice to the dependents of a failed node.
function L.settle.failure(flow)
  return { outcome = 'failed', cause = flow.node, on_failure = flow.on_failure }
end

-- Counts the nodes that have completed in this call, those of a flow together. `ended`: key of the flow -> the flow
-- and the refs of its nodes. Call it before anything that reads open nodes, since these have ended.
function L.settle.flush(ended, now)
  for key, list in pairs(ended) do
    local removed = redis.call('SREM', key .. ':open', unpack(list.refs))
    if removed > 0 then
      L.hashes.add(key, 'completed', removed)
      L.settle.end_if_done(list.flow, key, now)
    end
    ended[key] = nil
  end
end

-- Adds a completed node to those that `flush` counts.
local function count_later(flow, ref)
  local key = L.record.key(flow.home, flow.id)
  local list = flow.ended[key]
  if not list then
    list = { flow = flow, refs = {} }
    flow.ended[key] = list
  end
  list.refs[#list.refs + 1] = ref
end

-- Notifies the dependents of a completed node and counts its end, here, or in `flush` if flow.ended is set. Returns the
-- id of its flow if that needs gmo_advance_flow, else ''. flow.grows: whether the attempt staged nodes; flow.dependents:
-- how many dependents there are; both nil if not known.
function L.settle.job_completed(flow, prefix, job_id, now)
  local is_unfinished = flow.grows ~= false and L.join.commit(flow, prefix, job_id, now)
    or L.dependents.notify(flow, prefix, job_id, now, { outcome = 'completed', cause = flow.node }, flow.dependents)
  if flow.ended then
    count_later(flow, prefix .. job_id)
  else
    L.settle.ended(flow, prefix .. job_id, 'completed', '', now)
  end
  return is_unfinished and flow.id or ''
end

-- Ends a node that its handler has skipped.
function L.settle.job_skipped(flow, prefix, job_id, reason, now)
  L.grow.abandon(flow, job_id)
  L.dependents.notify(flow, prefix, job_id, now,
    { outcome = 'skipped', cause = flow.node, on_failure = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:on_failure') })
  L.settle.ended(flow, prefix .. job_id, 'skipped', reason, now)
  return L.advance.slice(flow.home, flow.id, now) > 0 and flow.id or ''
end

-- Ends the node of a job that has failed for good; a job outside flows is an ended child. Returns the id of its flow if that needs gmo_advance_flow, else ''.
function L.settle.job_failed(prefix, job_id, reason, now)
  local flow = L.record.of_job(prefix, job_id)
  if not flow and L.element_jobs.array_of(prefix, job_id) then
    local x = { now = now, flows = {} }
    L.element_jobs.settle(x, prefix, job_id)
    return x.flows[1] or ''
  elseif not flow then
    L.children.failed(prefix, job_id)
    return ''
  end
  L.grow.abandon(flow, job_id)
  L.dependents.notify(flow, prefix, job_id, now, L.settle.failure(flow))
  L.settle.ended(flow, prefix .. job_id, 'failed', reason, now)
  return L.advance.slice(flow.home, flow.id, now) > 0 and flow.id or ''
end
