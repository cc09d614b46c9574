-- blocked: nodes that still wait although all their dependencies have ended, for any reason: the caller that should
-- have notified or released them was interrupted, or notified other jobs. Notifying a node again changes nothing.
L.blocked = {}
local SMALL, PAGE, CHEAP = 50, 100, 2000
local ENDED = { completed = true, failed = true }

-- Whether the flow has no open work in its record. Nodes that are being notified, released or added are not blocked.
function L.blocked.is_at_rest(flow, key, now)
  local marks = redis.call('HMGET', key, 'cancel', 'retry', 'after')
  local tables = redis.call('EXISTS', key .. ':notifying', key .. ':ready', key .. ':roots', key .. ':blocked',
    key .. ':growing')
  if marks[1] or marks[2] or marks[3] or tables > 0 then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
    return false
  end
  L.settle.end_if_done(flow, key, now)
  return true
end

-- Whether a dependency of the node has not ended, nil where the check would take too long here; and how many
-- dependencies were counted.
local function is_waiting(key, prefix, job_id)
  local deps, own = prefix .. 'deps:' .. job_id, prefix .. job_id
  local any = redis.call('SRANDMEMBER', deps) -- usually one that has not ended
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

-- The notice of a node that has ended, or nil; if its job is missing, the outcome comes from the record.
local function notice_of(flow, key, ref)
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
    is_outside = job[1] and job[5] ~= flow.id }
end

-- Notifies a node of the end of one of its dependencies; false when that has not ended.
local function notify(flow, key, ref, dependency, now)
  if dependency == ref then
    return true
  end
  local notice = notice_of(flow, key, dependency)
  if not notice then
    return false
  elseif not notice.is_outside then
    L.release.notify(flow, key, dependency, ref, notice, now)
  elseif notice.outcome == 'completed' then -- a child job that the node has added
    local prefix, job_id = L.record.split(ref)
    L.parents.notify { prefix = prefix, parent_id = job_id, member = dependency }
  end
  return true
end

-- Releases or ends a node that was notified of all its dependencies.
local function decide(flow, key, ref, now)
  local may_run, v = L.rules.decide(key, ref)
  if may_run then
    L.release.node(flow, ref, now, v)
  end
  if redis.call('EXISTS', key .. ':blocked') == 1 then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
  end
end

-- Checks an open node that waits for dependencies, and notifies it if all have ended. Returns the cost, and true when
-- gmo_notify_again must do it.
function L.blocked.check(flow, key, ref, now)
  local prefix, job_id = L.record.split(ref)
  local waits, count = is_waiting(key, prefix, job_id)
  local cost = math.min(count, CHEAP) / PAGE
  if waits then
    return cost, false
  elseif waits == nil or count > SMALL then
    return cost, true
  end
  for _, dependency in ipairs(redis.call('SMEMBERS', prefix .. 'deps:' .. job_id)) do
    if not notify(flow, key, ref, dependency, now) then
      return cost + count, false
    end
  end
  decide(flow, key, ref, now)
  return cost + count, false
end

-- Notifies an open node of its ended dependencies, while others are open: cancelled ones may have notified nobody, and
-- the node reruns without them. A node with many dependencies is left to the walk over the open nodes. Returns the
-- cost.
function L.blocked.catch_up(flow, key, ref, now)
  local prefix, job_id = L.record.split(ref)
  local deps = prefix .. 'deps:' .. job_id
  local count = redis.call('SCARD', deps)
  if count > SMALL or redis.call('SINTERCARD', 2, deps, key .. ':open') == count then
    return 1
  end
  for _, dependency in ipairs(redis.call('SMEMBERS', deps)) do
    notify(flow, key, ref, dependency, now)
  end
  decide(flow, key, ref, now)
  return count
end

L.blocked.PAGE = PAGE
L.blocked.notify = notify
L.blocked.decide = decide
