-- rerun: nodes that have ended are to run again, in a retry or a restart of their flow. Steps, each in slices:
--   restart   (restarts only) every node is noted in :failed; those that running nodes had added are doomed
--   retry     every noted node goes back to waiting, and its dependents forget how it had ended; doomed ones go
--   then      what they know of the dependencies that do not run again decides about the nodes that went back
-- Nothing is released before the first two are over. The record's field `doomed` is there from the first node that is
-- doomed until the retry is over, cut off by a cancel or not: without it no edge needs to be looked at for doom.
L.rerun = {}
local SLICE, BUDGET = 50, 250
local function is_doomed(prefix, job_id)
  return redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:doomed') == 1
end

-- Nodes that were added from outside stay, those of a running node (see grow.lua) do not: it adds them again. Returns
-- whether the node stays.
local function note(key, name, ref)
  local prefix, job_id = L.record.split(ref)
  redis.call('SADD', key .. ':failed', ref)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:grown', 'gmo:row')
  if job[1] and job[1]:sub(1, 2) ~= 'x-' then
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:doomed', '1')
    redis.call('HSET', key, 'doomed', '1')
    return false
  elseif job[2] then -- without the names that were added to it
    local row = redis.call('HGET', key .. ':nodes', name)
    redis.call('HSET', key .. ':nodes', name, row:sub(1, tonumber(job[2]) - 1) .. ']')
    redis.call('HDEL', prefix .. 'job:' .. job_id, 'gmo:row')
  end
  return true
end

-- A slice of the restart; `left`: how many entries at the head of the order have not been looked at. Those that stay go
-- to its end. Returns how much is left.
function L.rerun.note_all(key, left)
  left = L.order.ensure(key) or tonumber(left)
  local open = key .. ':open'
  for _, entry in ipairs(redis.call('LPOP', key .. ':order', math.min(left, SLICE)) or {}) do
    left = left - 1
    local name, ref = L.order.split(entry)
    -- What joins the flow meanwhile is open and runs anyway.
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
local function clear(prefix, job_id, job, now)
  local key = prefix .. 'job:' .. job_id
  redis.call('ZREM', prefix .. 'failed', job_id)
  redis.call('ZREM', prefix .. 'completed', job_id)
  L.retry.reset(prefix, job_id, job, now, 'waiting-children')
  redis.call('HDEL', key, 'progress', 'processedOn', 'lastActive', 'returnvalue', 'activeSource', 'gmo:token', 'gmo:entry',
    'gmo:skipped')
end

-- Whether any node of the flow is doomed.
function L.rerun.dooms(key)
  return redis.call('HEXISTS', key, 'doomed') == 1
end

-- A dependent forgets how the node ended, or that there was such a node. Returns whether it stays a dependent.
function L.rerun.take_back(ref, dependent, dooms)
  if not dooms then
    L.rules.forget(ref, dependent)
    return true
  end
  local prefix, job_id = L.record.split(ref)
  local its_prefix, its_id = L.record.split(dependent)
  local goes, its_goes = is_doomed(prefix, job_id), is_doomed(its_prefix, its_id)
  if its_goes and not goes then
    redis.call('SREM', prefix .. 'parents:' .. job_id, dependent)
    return false
  end
  L.rules.forget(ref, dependent)
  if goes and not its_goes then
    redis.call('SREM', its_prefix .. 'deps:' .. its_id, ref)
  end
  return true
end

-- All dependents of the node have forgotten it.
function L.rerun.told(key, ref, dooms)
  local prefix, job_id = L.record.split(ref)
  if dooms and is_doomed(prefix, job_id) then
    redis.call('HDEL', key .. ':nodes', redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:node'))
    L.jobs.unlink(prefix, job_id)
  end
end
local function uncount(key, v)
  if v[1] == 'failed' then
    redis.call('HINCRBY', key, 'failed', -1)
    if v[3] == 'ignore' then
      redis.call('HINCRBY', key, 'ignored', -1)
    end
  else
    redis.call('HINCRBY', key, v[2] and 'skipped' or 'completed', -1)
  end
end

-- Returns what it cost.
local function reset(key, ref, now, dooms)
  local prefix, job_id = L.record.split(ref)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:skipped', 'gmo:on_failure', 'gmo:rule')
  local job = L.jobs.read(prefix, job_id)
  uncount(key, v[1] and v or { 'failed' }) -- a job that is gone has counted as failed
  if dooms and is_doomed(prefix, job_id) then
    redis.call('HINCRBY', key, 'total', -1)
    redis.call('ZREM', prefix .. 'failed', job_id)
    redis.call('ZREM', prefix .. 'completed', job_id)
  else
    redis.call('SADD', key .. ':open', ref)
    redis.call('SADD', key .. ':ready', ref)
    if job then
      clear(prefix, job_id, job, now)
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
    L.rerun.take_back(ref, dependent, dooms)
  end
  L.rerun.told(key, ref, dooms)
  return 5 + count
end

-- A slice of the retry; returns how much is left.
function L.rerun.slice(flow, key, now)
  local spent, dooms = 0, L.rerun.dooms(key)
  while spent < BUDGET do
    local ref = redis.call('SPOP', key .. ':failed')
    if not ref then
      break
    end
    spent = spent + reset(key, ref, now, dooms)
  end
  local left = redis.call('SCARD', key .. ':failed')
  if left == 0 and spent < BUDGET then
    left = L.dependents.go_on(flow, key, now)
    if left == 0 then
      redis.call('HDEL', key, 'retry', 'doomed')
      L.settle.end_if_over(flow, key, now) -- where every node that was noted is gone
    end
  end
  return math.max(left + redis.call('SCARD', key .. ':ready'), 1)
end
