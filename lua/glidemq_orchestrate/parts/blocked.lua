-- blocked: nodes that wait although nothing that they wait for is to come, whatever left them there: whoever told them, or
-- released them, was cut off, or told somebody else. To tell a dependent again what it knows changes nothing.
L.blocked = {}
local SMALL, PAGE, CHEAP = 50, 100, 2000
local ENDED = { completed = true, failed = true }

-- Whether all that the flow has to do stands in its nodes. What is being told, released or added is not missing.
function L.blocked.is_at_rest(flow, key, now)
  local marks = redis.call('HMGET', key, 'cancel', 'retry', 'restart')
  local tables = redis.call('EXISTS', key .. ':notifying', key .. ':ready', key .. ':blocked', key .. ':growing')
  if marks[1] or marks[2] or marks[3] or tables > 0 then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
    return false
  end
  L.settle.end_if_over(flow, key, now)
  return true
end

-- Whether a dependency of the node has not ended; nil where finding that out would take too long here.
local function is_waiting(key, prefix, job_id)
  local deps, own = prefix .. 'deps:' .. job_id, prefix .. job_id
  local any = redis.call('SRANDMEMBER', deps) -- mostly one that has not ended
  if any and any ~= own and redis.call('SISMEMBER', key .. ':open', any) == 1 then
    return true, 0
  end
  local count = redis.call('SCARD', deps)
  if count > CHEAP and redis.call('SCARD', key .. ':open') > CHEAP then
    for _, is_open in ipairs(redis.call('SMISMEMBER', key .. ':open', unpack(redis.call('SRANDMEMBER', deps, PAGE)))) do
      if is_open == 1 then
        return true, count
      end
    end
    return nil, count
  end
  -- A node with a rule waits for itself too.
  local guard = redis.call('SISMEMBER', deps, own)
  return redis.call('SINTERCARD', 2, deps, key .. ':open', 'LIMIT', 1 + guard) > guard, count
end

-- What a node of the flow that has ended tells; one whose job is gone has ended as the record says.
local function outcome_of(flow, key, ref)
  local prefix, job_id = L.record.split(ref)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node', 'gmo:skipped', 'gmo:on_failure',
    'gmo:flow')
  local state = job[1]
  if not state and redis.call('SISMEMBER', key .. ':open', ref) == 0 then
    state = redis.call('SISMEMBER', key .. ':failed', ref) == 1 and 'failed' or 'completed'
  end
  if not ENDED[state] then
    return nil
  end
  return { outcome = job[3] and 'skipped' or state, cause = job[2] or job_id, on_failure = job[4] or nil,
    is_stranger = job[1] and job[5] ~= flow.id }
end

-- Tells a node how one of its dependencies has ended; false when that has not.
local function tell(flow, key, ref, dependency, now)
  if dependency == ref then
    return true
  end
  local told = outcome_of(flow, key, dependency)
  if not told then
    return false
  elseif not told.is_stranger then
    L.release.notify(flow, key, dependency, ref, told, now)
  elseif told.outcome == 'completed' then -- a child that it has added itself
    local prefix, job_id = L.record.split(ref)
    L.parents.notify { prefix = prefix, parent_id = job_id, member = dependency }
  end
  return true
end

-- The node knows of all: it runs, or ends, by what it knows.
local function decide(flow, key, ref, now)
  if L.rules.begin(key, ref) then
    L.release.node(flow, ref, now)
  end
  if redis.call('EXISTS', key .. ':blocked') == 1 then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
  end
end

-- Sees to an open node that waits for dependencies. Returns what that cost, and true when gmo_notify_again has to.
function L.blocked.look(flow, key, ref, now)
  local prefix, job_id = L.record.split(ref)
  local waits, count = is_waiting(key, prefix, job_id)
  local cost = math.min(count, CHEAP) / PAGE
  if waits then
    return cost, false
  elseif waits == nil or count > SMALL then
    return cost, true
  end
  for _, dependency in ipairs(redis.call('SMEMBERS', prefix .. 'deps:' .. job_id)) do
    if not tell(flow, key, ref, dependency, now) then
      return cost + count, false
    end
  end
  decide(flow, key, ref, now)
  return cost + count, false
end

L.blocked.PAGE = PAGE
L.blocked.tell = tell
L.blocked.decide = decide
