-- children: a job that waits for the children that it has added continues when all of them have ended, including
-- failed, expired, revoked and removed ones. Its handler reads which.
--   <prefix>gmo:awaiting   zset: id of a job that waits -> when to check its children again, as Node workers and
--                          glide-mq's functions do not report failures
L.children = {}
local PAUSE, EACH, PARENTS, MAX, MANY, FEW = 3000, 10, 20, 1000, 100, 20
local ENDED = { completed = true, failed = true }

-- Calls visit(prefix, id, ref) for the jobs in this slot that have the job as a child.
local function each_parent(prefix, job_id, visit)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'parentId', 'parentQueue', 'opts')
  if L.jobs.is_portable(v[3]) then
    return
  end
  local refs = redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)
  if v[1] and v[2] and v[1] ~= '' and v[2] ~= '' then
    refs[#refs + 1] = prefix:match('^(.*){[^{}]*}:$') .. '{' .. v[2] .. '}:' .. v[1]
  end
  for _, ref in ipairs(refs) do
    local queue, parent_id = L.record.split(ref)
    if queue then
      pcall(visit, queue, parent_id, ref) -- jobs in another slot cannot be accessed
    end
  end
end

-- Counts the final failure of a child as an end. Not for a parent that a Node client created waiting: there a failed
-- child blocks its parent.
function L.children.failed(prefix, job_id)
  each_parent(prefix, job_id, function(queue, parent_id)
    local state = redis.call('HGET', queue .. 'job:' .. parent_id, 'state')
    if state and not ENDED[state]
      and (state ~= 'waiting-children' or redis.call('ZSCORE', queue .. 'gmo:awaiting', parent_id)) then
      L.parents.notify { prefix = queue, parent_id = parent_id, member = prefix .. job_id }
    end
  end)
end

-- A failed child reruns: its waiting parents wait again.
function L.children.again(prefix, job_id)
  each_parent(prefix, job_id, function(queue, parent_id, ref)
    L.rules.forget(prefix .. job_id, ref)
    redis.call('HDEL', queue .. 'job:' .. parent_id, 'gmo:waited')
  end)
end

-- How many children a job has added. A node with many dependencies is assumed to have some.
local function count_children(prefix, job_id, v)
  local deps, found = prefix .. 'deps:' .. job_id, 0
  local total = redis.call('SCARD', deps)
  if total > MAX or not (v[2] or L.jobs.is_portable(v[3])) then
    return total
  end
  for _, member in ipairs(redis.call('SMEMBERS', deps)) do
    found = found + (L.members.look(job_id, member) and 1 or 0)
  end
  return found
end

-- A child that waits for the only slot of an ordering key, held by the job that would wait for the child; or nil.
local function held_up(prefix, job_id)
  local group_key = redis.call('HGET', prefix .. 'job:' .. job_id, 'groupKey')
  if not group_key or redis.call('HGET', prefix .. 'group:' .. group_key, 'maxConcurrency') ~= '1' then
    return nil
  end
  for _, member in ipairs(redis.call('SRANDMEMBER', prefix .. 'deps:' .. job_id, MAX)) do
    local queue, child_id = L.record.split(member)
    local v = queue == prefix and redis.call('HMGET', prefix .. 'job:' .. child_id, 'groupKey', 'state') or {}
    if v[1] == group_key and v[2] and not ENDED[v[2]] then
      return 'WaitForChildren: child ' .. child_id .. ' would never run: this job keeps the place of ordering key ' .. group_key
    end
  end
end

-- Why a job cannot wait for its children, since there are none or it would never end; or nil. The field gmo:waited: how
-- many it had when it last waited; removed when an attempt fails or is lost, or a child reruns.
function L.children.refusal(prefix, job_id)
  local key = prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', key, 'gmo:waited', 'gmo:flow', 'opts', 'depsCompleted')
  local found = count_children(prefix, job_id, v)
  local has_open = redis.call('SCARD', prefix .. 'deps:' .. job_id) > L.numbers.int(v[4], 0)
  if found == 0 then
    return 'WaitForChildren: it has added no children'
  elseif not has_open and found <= L.numbers.int(v[1], 0) then
    return 'WaitForChildren: all its children have ended, and it has added no more'
  end
  local why = held_up(prefix, job_id)
  if why then return why end
  redis.call('HSET', key, 'gmo:waited', found)
end

-- Makes the job wait for its children.
function L.children.await(prefix, job_id, now)
  redis.call('ZADD', prefix .. 'gmo:awaiting', now + PAUSE, job_id)
end

-- Detaches a child: its end, or that of a later job with its id, no longer affects the job. Returns whether it was a
-- child of the job.
local function part(prefix, job_id, member)
  local queue, child_id = L.record.split(member)
  local key = queue and queue .. 'job:' .. child_id
  local v = key and redis.pcall('HMGET', key, 'parentId', 'parentQueue') or { err = 'no job' }
  if v.err or v[1] ~= job_id or not v[2] or prefix:sub(-#v[2] - 3) ~= '{' .. v[2] .. '}:' then
    return false
  end
  redis.call('HDEL', key, 'parentId', 'parentQueue')
  return true
end

-- Detaches a removed job from its children, a thousand at most, if one has not ended.
function L.children.leave(prefix, job_id)
  local deps, done = prefix .. 'deps:' .. job_id, redis.call('HGET', prefix .. 'job:' .. job_id, 'depsCompleted')
  if redis.call('SCARD', deps) <= L.numbers.int(done, 0) then
    return
  end
  for _, member in ipairs(redis.call('SRANDMEMBER', deps, MAX)) do
    part(prefix, job_id, member)
  end
end

-- Detaches a rerun node from the children of its last run. With many dependencies, only those are checked that cannot
-- be nodes by their ids, and only if it has waited for children.
function L.children.forget(prefix, job_id)
  local deps, key = prefix .. 'deps:' .. job_id, prefix .. 'job:' .. job_id
  local count = redis.call('SCARD', deps)
  local has_waited = count > FEW and redis.call('HEXISTS', key, 'gmo:waited') == 1
  if count > MANY and not has_waited then
    return
  end
  for _, member in ipairs(redis.call('SMEMBERS', deps)) do
    local _, child_id = L.record.split(member)
    local may_be_node = child_id and L.members.is_node_id(job_id, child_id)
    local is_own = (not may_be_node or count <= FEW or has_waited) and part(prefix, job_id, member)
    if is_own or (not may_be_node and L.members.look(job_id, member)) then
      redis.call('SREM', deps, member)
      L.rules.forget(member, prefix .. job_id)
    end
  end
end

-- Whether a child has ended or was removed without notifying its parent.
local function is_unnoticed(key, parent_id, member, is_node)
  if not L.record.split(member) or redis.call('HEXISTS', key, 'depdone:' .. member) == 1 then
    return false
  end
  local is_child, state, is_elsewhere = L.members.look(parent_id, member)
  return (is_child or not is_node) and not is_elsewhere and (not state or ENDED[state] or false)
end

local function look(prefix, parent_id, now)
  local key, waiting = prefix .. 'job:' .. parent_id, prefix .. 'gmo:awaiting'
  local v = redis.call('HMGET', key, 'state', 'gmo:flow', 'opts')
  if v[1] ~= 'waiting-children' then
    redis.call('ZREM', waiting, parent_id)
    return
  end
  local deps, is_node = prefix .. 'deps:' .. parent_id, v[2] or L.jobs.is_portable(v[3])
  local count = redis.call('SCARD', deps)
  redis.call('ZADD', waiting, now + PAUSE + EACH * count, parent_id)
  local members = count > MAX and redis.call('SRANDMEMBER', deps, MAX) or redis.call('SMEMBERS', deps)
  for _, member in ipairs(members) do
    if is_unnoticed(key, parent_id, member, is_node) then
      L.parents.notify { prefix = prefix, parent_id = parent_id, member = member }
    end
  end
end

-- Checks the children of jobs that have waited for a while; returns the number of jobs.
function L.children.sweep(prefix, now)
  local due = redis.call('ZRANGEBYSCORE', prefix .. 'gmo:awaiting', '-inf', now, 'LIMIT', 0, PARENTS)
  for _, parent_id in ipairs(due) do
    look(prefix, parent_id, now)
  end
  return #due
end

-- Notifies the job that waits for this one by the fields parentId and parentQueue.
function L.children.notify_parent(x, o, job)
  if job.parentId and job.parentQueue and job.parentId ~= '' and job.parentQueue ~= '' then
    local start = x.prefix:match('^(.*):{[^{}]*}:$')
    L.parents.notify { prefix = start .. ':{' .. job.parentQueue .. '}:', parent_id = job.parentId,
      member = x.prefix .. o.job_id }
  end
end
