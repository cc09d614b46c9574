-- children: a job that waits for the children that it has added goes on when all of them have ended: also those that have
-- failed, have expired, or were revoked or removed. Its handler reads which.
--   <prefix>gmo:awaiting   zset: id of a job that waits -> when its children are looked at again, as Node workers and
--                          glide-mq's functions tell nobody of a failure
L.children = {}
local PAUSE, EACH, PARENTS, MOST = 3000, 10, 20, 1000
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
      pcall(visit, queue, parent_id, ref) -- those in another slot cannot be reached
    end
  end
end

-- Counts the final failure of a child as an end. Not for a parent that a Node client has made to wait from the start: there
-- a failed child holds its parent back.
function L.children.failed(prefix, job_id)
  each_parent(prefix, job_id, function(queue, parent_id)
    local state = redis.call('HGET', queue .. 'job:' .. parent_id, 'state')
    if state and not ENDED[state]
      and (state ~= 'waiting-children' or redis.call('ZSCORE', queue .. 'gmo:awaiting', parent_id)) then
      L.parents.notify { prefix = queue, parent_id = parent_id, member = prefix .. job_id }
    end
  end)
end

-- A failed child runs again: whoever waits for it waits again.
function L.children.again(prefix, job_id)
  each_parent(prefix, job_id, function(queue, parent_id, ref)
    L.rules.forget(prefix .. job_id, ref)
    redis.call('HDEL', queue .. 'job:' .. parent_id, 'gmo:waited')
  end)
end

-- Whether a member of the dependencies of a node is a job that it has added, not a node or a gate that holds it back. What
-- is in another slot tells by its id.
local function is_child(own_id, member)
  local queue, job_id = L.record.split(member)
  if not queue or job_id:find('^gmo%-gate%-') then
    return false
  end
  local v = redis.pcall('HMGET', queue .. 'job:' .. job_id, 'state', 'gmo:flow', 'opts')
  if v.err or not v[1] then
    local flow = own_id:match('^(.*~)') or (own_id:find('^gmo%-') and 'gmo-')
    return not (flow and job_id:sub(1, #flow) == flow)
  end
  return not v[2] and not L.jobs.is_portable(v[3])
end

-- How many children a job has added. A node with many dependencies counts as one that has.
local function count_children(prefix, job_id, v)
  local deps, found = prefix .. 'deps:' .. job_id, 0
  local total = redis.call('SCARD', deps)
  if total > MOST or not (v[2] or L.jobs.is_portable(v[3])) then
    return total
  end
  for _, member in ipairs(redis.call('SMEMBERS', deps)) do
    found = found + (is_child(job_id, member) and 1 or 0)
  end
  return found
end

-- Why a job that asks to wait for its children would wait for nobody, or nil. The field gmo:waited: how many it had when it
-- waited last; it goes when an attempt fails or is lost, or a child runs again.
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
  redis.call('HSET', key, 'gmo:waited', found)
end

-- The job waits for its children from now on.
function L.children.await(prefix, job_id, now)
  redis.call('ZADD', prefix .. 'gmo:awaiting', now + PAUSE, job_id)
end

-- Whether a child has ended without its parent having been told. What a node depends on is no child of it, and a job of which
-- nothing is left may be either.
local function is_unnoticed(key, member, is_node)
  local queue, job_id = L.record.split(member)
  if not queue or redis.call('HEXISTS', key, 'depdone:' .. member) == 1 then
    return false
  end
  local v = redis.pcall('HMGET', queue .. 'job:' .. job_id, 'state', 'gmo:flow', 'opts')
  if v.err then
    return false
  elseif not is_node then
    return not v[1] or ENDED[v[1]] or false
  end
  return ENDED[v[1]] and not v[2] and not L.jobs.is_portable(v[3]) or false
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
  local members = count > MOST and redis.call('SRANDMEMBER', deps, MOST) or redis.call('SMEMBERS', deps)
  for _, member in ipairs(members) do
    if is_unnoticed(key, member, is_node) then
      L.parents.notify { prefix = prefix, parent_id = parent_id, member = member }
    end
  end
end

-- Looks at the children of jobs that have waited for a while; returns of how many.
function L.children.sweep(prefix, now)
  local due = redis.call('ZRANGEBYSCORE', prefix .. 'gmo:awaiting', '-inf', now, 'LIMIT', 0, PARENTS)
  for _, parent_id in ipairs(due) do
    look(prefix, parent_id, now)
  end
  return #due
end
