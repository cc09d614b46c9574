-- edges: the dependencies between jobs of one queue that belong to no flow. An edge is stored on both sides, as glide-mq
-- does: deps:<dependent> has the ref of the dependency; parents:<dependency> that of the dependent, also in the fields
-- parentIds and parentQueues, which tell Node workers to look there.
--   job:<dependent>   its field gmo:place: "<state> <due time>" of a job that waits for dependencies; see parents.lua
L.edges = {}
local MAX_SEARCHED = 1000
local ENDED = { completed = true, failed = true }
local MAY_WAIT = { waiting = true, delayed = true, prioritized = true, ['waiting-children'] = true }

local function queue_of(prefix)
  return prefix:match('{([^{}]*)}:$')
end

-- Adds a dependent to the lists in the fields of its dependency, or removes it.
local function note_parent(prefix, child_id, parent_id, is_added)
  local key, ids, queues = prefix .. 'job:' .. child_id, {}, {}
  local v = redis.call('HMGET', key, 'parentIds', 'parentQueues')
  local are_ids, old_ids = pcall(cjson.decode, v[1] or '[]')
  local are_queues, old_queues = pcall(cjson.decode, v[2] or '[]')
  for i, id in ipairs(are_ids and are_queues and old_ids or {}) do
    if id ~= parent_id or old_queues[i] ~= queue_of(prefix) then
      ids[#ids + 1], queues[#queues + 1] = id, old_queues[i]
    end
  end
  if is_added then
    ids[#ids + 1], queues[#queues + 1] = parent_id, queue_of(prefix)
  end
  if #ids > 0 then
    redis.call('HSET', key, 'parentIds', cjson.encode(ids), 'parentQueues', cjson.encode(queues))
  else
    redis.call('HDEL', key, 'parentIds', 'parentQueues')
  end
end

-- Whether the dependencies of a job may change; if not, its state, or flow or ordered. nil for a missing job.
function L.edges.refusal(prefix, job_id)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:flow', 'opts', 'groupKey')
  if not v[1] then
    return nil, true
  elseif v[2] or L.jobs.is_portable(v[3]) then
    return 'flow', true
  elseif v[4] then
    return 'ordered', true
  elseif not MAY_WAIT[v[1]] or redis.call('ZSCORE', prefix .. 'gmo:awaiting', job_id) then
    return v[1] == 'waiting-children' and 'its children' or v[1], true
  end
  return v[1], false
end

-- Whether a job waits for another one, directly or through others; nil when too many edges would have to be searched.
function L.edges.reaches(prefix, from, to)
  local seen, todo, at, edges = { [from] = true }, { from }, 1, 0
  while todo[at] do
    if todo[at] == to then
      return true
    end
    edges = edges + redis.call('SCARD', prefix .. 'deps:' .. todo[at])
    if edges > MAX_SEARCHED then
      return nil
    end
    for _, member in ipairs(redis.call('SMEMBERS', prefix .. 'deps:' .. todo[at])) do
      local queue, job_id = L.record.split(member)
      if queue == prefix and not seen[job_id] then
        seen[job_id], todo[#todo + 1] = true, job_id
      end
    end
    at = at + 1
  end
  return false
end

-- Makes a job wait for another one. Returns added, same, ended or unknown.
function L.edges.add(prefix, job_id, child_id)
  local state = redis.call('HGET', prefix .. 'job:' .. child_id, 'state')
  if not state or ENDED[state] then
    return state and 'ended' or 'unknown'
  elseif redis.call('SADD', prefix .. 'deps:' .. job_id, prefix .. child_id) == 0 then
    return 'same'
  end
  redis.call('SADD', prefix .. 'parents:' .. child_id, prefix .. job_id)
  note_parent(prefix, child_id, job_id, true)
  return 'added'
end

-- Makes a job wait no longer for another one, by its ref. Returns removed, or unknown.
function L.edges.remove(prefix, job_id, member)
  local key, queue, child_id = prefix .. 'job:' .. job_id, L.record.split(member)
  if redis.call('SREM', prefix .. 'deps:' .. job_id, member) == 0 then
    return 'unknown'
  end
  if redis.call('HDEL', key, 'depdone:' .. member) == 1 then
    L.hashes.add(key, 'depsCompleted', -1)
  end
  if queue == prefix then
    redis.call('SREM', prefix .. 'parents:' .. child_id, prefix .. job_id)
    note_parent(prefix, child_id, job_id, false)
    local child = prefix .. 'job:' .. child_id
    local v = redis.call('HMGET', child, 'parentId', 'parentQueue')
    if v[1] == job_id and v[2] == queue_of(prefix) then
      redis.call('HDEL', child, 'parentId', 'parentQueue')
    end
  end
  return 'removed'
end

-- Whether a job has a dependency that has not completed.
local function is_blocked(prefix, job_id)
  local done = L.numbers.int(redis.call('HGET', prefix .. 'job:' .. job_id, 'depsCompleted'), 0)
  return redis.call('SCARD', prefix .. 'deps:' .. job_id) > done
end

-- Takes a job that has a new dependency out of its place, to which it returns at the end. False: its entry in the stream
-- was not found, and stays until a worker finds that the job waits.
function L.edges.hold(prefix, job_id, state)
  local key, job = prefix .. 'job:' .. job_id, L.jobs.read(prefix, job_id)
  if state == 'waiting-children' or not is_blocked(prefix, job_id) then
    return true
  end
  local score = tonumber(redis.call('ZSCORE', prefix .. 'scheduled', job_id) or '')
  local due = score and L.numbers.time_of(score) or 0
  local entry = redis.call('HGET', key, 'gmo:entry')
  local is_found = L.remove.take_out(prefix, job_id, job, entry or nil, 0)
  redis.call('HDEL', key, 'gmo:entry')
  redis.call('HSET', key, 'state', 'waiting-children', 'gmo:place', state .. ' ' .. L.numbers.text(due))
  L.events.emit(prefix .. 'events', 'waiting-children', job_id)
  return is_found
end

-- Lets a job continue that waits for nothing any more. Returns whether it does.
function L.edges.release(prefix, job_id)
  local key = prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', key, 'state', 'name')
  if v[1] ~= 'waiting-children' or is_blocked(prefix, job_id) then
    return false
  end
  L.parents.wake(key, prefix .. 'stream', prefix .. 'events', job_id, v[2] or '')
  return true
end

-- The refs of the jobs that wait for a job and have not ended.
function L.edges.dependents(prefix, job_id)
  local single, open = redis.call('HMGET', prefix .. 'job:' .. job_id, 'parentId', 'parentQueue'), {}
  local refs = redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)
  if single[1] and single[2] and single[1] ~= '' and single[2] ~= '' then
    refs[#refs + 1] = prefix:match('^(.*){[^{}]*}:$') .. '{' .. single[2] .. '}:' .. single[1]
  end
  for _, ref in ipairs(refs) do
    local queue, parent_id = L.record.split(ref)
    local state = queue == prefix and redis.call('HGET', prefix .. 'job:' .. parent_id, 'state')
    if queue and (queue ~= prefix or (state and not ENDED[state])) then
      open[#open + 1] = ref
    end
  end
  return open
end
