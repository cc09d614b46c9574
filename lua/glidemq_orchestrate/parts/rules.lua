-- rules: how the end of a dependency counts for a node, and when a node runs.
-- A node ends as completed, failed or skipped; a skipped one is completed for glide-mq, with the field gmo:skipped.
-- How an outcome counts for a dependent is set by, in this order, the field gmo:edge:<ref> or gmo:edge of the
-- dependent, or the field gmo:on_failure of the dependency: fail (the default), ignore, skip or all_done.
-- A node without the field gmo:rule runs when all its dependencies count as completed, and ends with the first that
-- does not; glide-mq counts its completed ones too. For a node with that field we count in gmo:completed, gmo:failed
-- and gmo:skips, each dependency once by the field gmo:dep:<ref>. glide-mq cannot release it: until its release, its
-- set of dependencies contains the node itself.
L.rules = {}
local COUNTS_AS = {
  ignore = { failed = 'completed' },
  skip = { failed = 'skipped' },
  all_done = { failed = 'completed', skipped = 'completed' },
}
local COUNTERS = { completed = 'gmo:completed', failed = 'gmo:failed', skipped = 'gmo:skips' }

-- Each returns run, failed or skipped, or false while it is undecided; c, f, k of n dependencies have completed, failed,
-- been skipped. The names and meanings are those of Airflow's trigger rules.
local VERDICT = {
  all_success = function(c, f, k, n)
    return f > 0 and 'failed' or k > 0 and 'skipped' or c == n and 'run'
  end,
  all_failed = function(c, f, k, n)
    return c + k > 0 and 'skipped' or f == n and 'run'
  end,
  all_skipped = function(c, f, k, n)
    return c + f > 0 and 'skipped' or k == n and 'run'
  end,
  all_done = function(c, f, k, n)
    return c + f + k == n and 'run'
  end,
  all_done_min_one_success = function(c, f, k, n)
    return k > 0 and 'skipped' or f == n and 'failed' or c + f == n and 'run'
  end,
  one_success = function(c, f, k, n)
    return c > 0 and 'run' or k == n and 'skipped' or f + k == n and 'failed'
  end,
  one_failed = function(c, f, k, n)
    return f > 0 and 'run' or c + k == n and 'skipped'
  end,
  one_done = function(c, f, k, n)
    return c + f > 0 and 'run' or k == n and 'skipped'
  end,
  none_failed = function(c, f, k, n)
    return f > 0 and 'failed' or c + k == n and 'run'
  end,
  none_failed_min_one_success = function(c, f, k, n)
    return f > 0 and 'failed' or k == n and 'skipped' or c + k == n and 'run'
  end,
  none_skipped = function(c, f, k, n)
    return k > 0 and 'skipped' or c + f == n and 'run'
  end,
  always = function()
    return 'run'
  end,
}

-- Adds the node to its own dependencies, so that glide-mq does not release it.
function L.rules.guard(prefix, job_id)
  redis.call('SADD', prefix .. 'deps:' .. job_id, prefix .. job_id)
end

-- Removes the node from its own dependencies.
function L.rules.unguard(prefix, job_id)
  redis.call('SREM', prefix .. 'deps:' .. job_id, prefix .. job_id)
end

-- How an outcome counts for the dependent; v: its fields from `L.release.read`.
local function effect(notice, v)
  local changed = COUNTS_AS[v[9] or v[7] or notice.on_failure]
  return changed and changed[notice.outcome] or notice.outcome
end

-- A counter of a job; 0 without it.
local function count(key, field)
  return tonumber(redis.call('HGET', key, field)) or 0
end

-- Refuses an unknown rule: the node must not run by another one.
function L.rules.check(node)
  local rule = node.more:match('"gmo:rule":%s*"([^"]*)"')
  if rule and not VERDICT[rule] then
    error({ err = 'GMO_BAD_CALL node ' .. node.name .. ' has the rule ' .. rule .. ', which this library does not have' })
  end
end

-- The decision on a waiting node with a rule: run, failed or skipped, or nil while it is undecided.
local function verdict(prefix, job_id, rule)
  local key, deps = prefix .. 'job:' .. job_id, prefix .. 'deps:' .. job_id
  if redis.call('SISMEMBER', deps, prefix .. job_id) == 0 then
    return nil -- it was released, and waits for its own child jobs
  end
  local all = redis.call('SCARD', deps) - 1
  if all == 0 then
    return 'run'
  end
  local decide = VERDICT[rule] or VERDICT.all_success
  return decide(count(key, COUNTERS.completed), count(key, COUNTERS.failed), count(key, COUNTERS.skipped), all) or nil
end

-- Records a node that cannot run, for gmo_advance_flow; its field gmo:why has the cause.
local function block(key, job_key, dependent, outcome, notice)
  local why = type(notice) == 'string' and notice or notice.outcome .. '\n' .. notice.cause
  redis.call('HSET', job_key, 'gmo:why', why)
  redis.call('SADD', key .. ':blocked', dependent .. '\n' .. outcome .. '\n' .. why)
end

-- Counts the outcome of a dependency; false when it was counted before.
local function mark(job_key, ref, outcome)
  if redis.call('HSETNX', job_key, 'gmo:dep:' .. ref, outcome) == 0 then
    return false
  end
  L.hashes.add(job_key, COUNTERS[outcome], 1)
  return true
end

-- Decides on a node that starts or restarts, by the outcomes counted so far; a node that cannot run is blocked.
-- Returns whether it may be released, and its fields from `L.release.read`.
function L.rules.decide(key, ref)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  local v = L.release.read(job_key, 'depsCompleted', COUNTERS.skipped)
  local skips, now_due = tonumber(v[10]) or 0
  if v[4] then
    now_due = verdict(prefix, job_id, v[4])
  elseif skips > 0 then
    now_due = 'skipped'
  else
    now_due = (tonumber(v[9]) or 0) >= redis.call('SCARD', prefix .. 'deps:' .. job_id) and 'run'
  end
  if v[1] == 'waiting-children' and (now_due == 'failed' or now_due == 'skipped') then
    local outcome = count(job_key, COUNTERS.failed) > 0 and 'failed' or skips > 0 and 'skipped' or 'completed'
    local cause = v[4] and 'rule ' .. v[4] .. ' is not met' or 'a dependency' -- a rerun has not kept which one
    local why = redis.call('HGET', job_key, 'gmo:why')
    block(key, job_key, ref, now_due, why or outcome .. '\n' .. cause)
  end
  return now_due == 'run', v
end

-- Counts a dependency like glide-mq. Returns whether it was the last that the node waits for.
local function tick_off(prefix, job_id, ref)
  local key = prefix .. 'job:' .. job_id
  return redis.call('HSETNX', key, 'depdone:' .. ref, '1') == 1
    and L.hashes.add(key, 'depsCompleted', 1) >= redis.call('SCARD', prefix .. 'deps:' .. job_id)
end

-- Notifies a dependent of the end of the job `ref`. A repeat changes nothing. Returns run when it may be released,
-- blocked when gmo_advance_flow must end it, or nil; and its fields from `L.release.read`. notice: outcome, cause (the
-- node where it started) and on_failure (of the node that ended, or nil).
function L.rules.notify(key, ref, dependent, notice)
  local prefix, job_id = L.record.split(dependent)
  local job_key = prefix .. 'job:' .. job_id
  local v = L.release.read(job_key, 'gmo:edge:' .. ref)
  if not v[1] then
    return nil
  end
  local outcome, is_waiting = effect(notice, v), v[1] == 'waiting-children'
  if not v[4] then
    if outcome == 'completed' then
      return tick_off(prefix, job_id, ref) and is_waiting and 'run' or nil, v
    elseif outcome == 'skipped' then
      mark(job_key, ref, outcome)
    end
    block(key, job_key, dependent, outcome, notice)
    return 'blocked'
  end
  tick_off(prefix, job_id, ref)
  if not mark(job_key, ref, outcome) then
    return nil
  end
  local now_due = is_waiting and verdict(prefix, job_id, v[4])
  if now_due == 'failed' or now_due == 'skipped' then
    block(key, job_key, dependent, now_due, notice)
    return 'blocked'
  end
  return now_due or nil, v
end

-- Undoes the notification of a dependent about the job `ref`, which reruns.
function L.rules.forget(ref, dependent)
  local prefix, job_id = L.record.split(dependent)
  local job_key = prefix .. 'job:' .. job_id
  local outcome = redis.call('HGET', job_key, 'gmo:dep:' .. ref)
  if outcome then
    redis.call('HDEL', job_key, 'gmo:dep:' .. ref)
    L.hashes.add(job_key, COUNTERS[outcome], -1)
  end
  if redis.call('HDEL', job_key, 'depdone:' .. ref) == 1 then
    L.hashes.add(job_key, 'depsCompleted', -1)
  end
end
