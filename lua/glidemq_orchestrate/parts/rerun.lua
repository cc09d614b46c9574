-- rerun: ended nodes run again, in a retry or a restart of their flow. Steps, each in slices:
--   restart   (restarts only) every node is added to :failed; those that running nodes had added are leaving: they are
--             to be removed, and have the field gmo:leaving
--   retry     every node in :failed waits again, and its dependents forget its end; leaving ones are removed
--   then      the ends of the dependencies that do not run again decide about the reset nodes
-- Nothing is released before the first two have ended. The record has the field `leaving` from the first leaving node to
-- the end of the retry, interrupted by a cancel or not: without it no edge needs to be checked for a leaving node.
L.rerun = {}
local SLICE, BUDGET = 50, 250

-- Whether the node is to be removed by the restart.
local function is_leaving(prefix, job_id)
  return redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:leaving') == 1
end

-- Adds a node to :failed. Nodes that were added from outside stay, those that a running node has added (see grow.lua)
-- leave: it adds them again. Returns whether the node stays.
local function note(key, name, ref)
  local prefix, job_id = L.record.split(ref)
  redis.call('SADD', key .. ':failed', ref)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:grown', 'gmo:row')
  if job[1] and job[1]:sub(1, 2) ~= 'x-' then
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:leaving', '1')
    redis.call('HSET', key, 'leaving', '1')
    return false
  elseif job[2] then -- remove the names that were appended to the row
    local row = redis.call('HGET', key .. ':nodes', name)
    redis.call('HSET', key .. ':nodes', name, row:sub(1, tonumber(job[2]) - 1) .. ']')
    redis.call('HDEL', prefix .. 'job:' .. job_id, 'gmo:row')
  end
  return true
end

-- Does a slice of the restart; `left`: how many entries at the head of the order are not done. Nodes that stay move to
-- its end. Returns how much is left.
function L.rerun.note_all(key, left)
  left = L.order.ensure(key) or tonumber(left)
  local open = key .. ':open'
  for _, entry in ipairs(redis.call('LPOP', key .. ':order', math.min(left, SLICE)) or {}) do
    left = left - 1
    local name, ref = L.order.split(entry)
    -- Nodes that join the flow meanwhile are open and run anyway.
    if redis.call('HEXISTS', key .. ':nodes', name) == 1
      and (redis.call('SISMEMBER', open, ref) == 1 or note(key, name, ref)) then
      redis.call('RPUSH', key .. ':order', entry)
    end
  end
  left = math.min(left, redis.call('LLEN', key .. ':order'))
  if left <= 0 then
    redis.call('HDEL', key, 'restart')
    redis.call('HSET', key, 'retry', '1')
  else
    redis.call('HSET', key, 'restart', left)
  end
  return redis.call('SCARD', key .. ':failed') + 1
end

-- Whether any node of the flow is leaving.
function L.rerun.has_leaving(key)
  return redis.call('HEXISTS', key, 'leaving') == 1
end

-- Makes a dependent forget the end of the node, or a leaving node itself. Returns whether it stays a dependent.
function L.rerun.take_back(ref, dependent, has_leaving)
  if not has_leaving then
    L.rules.forget(ref, dependent)
    return true
  end
  local prefix, job_id = L.record.split(ref)
  local its_prefix, its_id = L.record.split(dependent)
  local leaves, it_leaves = is_leaving(prefix, job_id), is_leaving(its_prefix, its_id)
  if it_leaves and not leaves then
    redis.call('SREM', prefix .. 'parents:' .. job_id, dependent)
    return false
  end
  L.rules.forget(ref, dependent)
  if leaves and not it_leaves then
    redis.call('SREM', its_prefix .. 'deps:' .. its_id, ref)
  end
  return true
end

-- Removes a leaving node after all its dependents have forgotten it.
function L.rerun.forgotten(key, ref, has_leaving)
  local prefix, job_id = L.record.split(ref)
  if has_leaving and is_leaving(prefix, job_id) then
    redis.call('HDEL', key .. ':nodes', redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:node'))
    L.jobs.unlink(prefix, job_id)
  end
end

-- Takes the end of a node out of the counts of the flow.
local function uncount(key, v)
  if v[1] == 'failed' or v[5] then
    redis.call('HINCRBY', key, 'failed', -1)
    if v[3] == 'ignore' then
      redis.call('HINCRBY', key, 'ignored', -1)
    end
  else
    redis.call('HINCRBY', key, v[2] and 'skipped' or 'completed', -1)
  end
end

-- Resets one node, or counts it out if it is leaving, and its dependents forget its end. Returns the cost.
local function reset(key, ref, now, has_leaving)
  local prefix, job_id = L.record.split(ref)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:skipped', 'gmo:on_failure', 'gmo:rule',
    'gmo:end')
  local job = L.jobs.read(prefix, job_id)
  uncount(key, v[1] and v or { 'failed' }) -- a missing job has counted as failed
  if has_leaving and is_leaving(prefix, job_id) then
    redis.call('HINCRBY', key, 'total', -1)
    redis.call('ZREM', prefix .. 'failed', job_id)
    redis.call('ZREM', prefix .. 'completed', job_id)
  else
    redis.call('SADD', key .. ':open', ref)
    redis.call('SADD', key .. ':ready', ref)
    if job then
      L.fresh.reset(prefix, job_id, job, now)
    end
    if v[4] then
      L.rules.guard(prefix, job_id)
    end
  end
  local count, is_small = L.dependents.count(prefix, job_id)
  if not is_small then
    L.dependents.begin(key, ref, { outcome = 'again' })
    return SLICE
  end
  for _, dependent in ipairs(redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)) do
    L.rerun.take_back(ref, dependent, has_leaving)
  end
  L.rerun.forgotten(key, ref, has_leaving)
  return 5 + count
end

-- Does a slice of the retry; returns how much is left.
function L.rerun.slice(flow, key, now)
  local spent, has_leaving = 0, L.rerun.has_leaving(key)
  while spent < BUDGET do
    local ref = redis.call('SPOP', key .. ':failed')
    if not ref then
      break
    end
    spent = spent + reset(key, ref, now, has_leaving)
  end
  local left = redis.call('SCARD', key .. ':failed')
  if left == 0 and spent < BUDGET then
    left = L.dependents.continue(flow, key, now)
    if left == 0 then
      redis.call('HDEL', key, 'retry', 'leaving')
      L.settle.end_if_done(flow, key, now) -- when all nodes of :failed were removed
    end
  end
  return math.max(left + redis.call('SCARD', key .. ':ready'), 1)
end
