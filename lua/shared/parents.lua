-- parents: notifying a parent that one of its dependencies is done.
-- `<prefix>deps:<parent>` lists the dependencies; the parent hash has `depdone:<member>` for each that is
-- done and their number in `depsCompleted`.

local M = {}
L.parents = M

-- Returns a job that waited in another place before it got dependencies (its field gmo:place) to this place.
local function put_back(job_key, stream_key, place, parent_id, name)
  local prefix, state, due = L.hashes.prefix(stream_key, 'stream'), place:match('^(%a+) (%d+)$')
  local v = redis.call('HMGET', job_key, 'priority', 'lifo')
  local priority = L.numbers.int(v[1], 0)
  redis.call('HDEL', job_key, 'gmo:place')
  redis.call('HSET', job_key, 'state', state or 'waiting')
  if state == 'delayed' or state == 'prioritized' then
    L.priorities.schedule(prefix .. 'scheduled', parent_id, priority, L.numbers.int(due, 0))
  else
    L.jobs.make_ready(prefix, parent_id, { name = name, lifo = v[2] }, priority)
  end
end

-- Makes a parent that waits for its children ready.
function M.wake(job_key, stream_key, events_key, parent_id, name)
  local place = redis.call('HGET', job_key, 'gmo:place')
  if place then
    put_back(job_key, stream_key, place, parent_id, name)
  else
    redis.call('HSET', job_key, 'state', 'waiting')
    L.stream.append(stream_key, parent_id, name)
  end
  L.events.emit(events_key, 'active', parent_id)
end

-- n: prefix (of the parent's queue), parent_id, member; the keys deps_key, job_key, stream_key and
-- events_key replace those of the prefix when given. Counts each member once; a missing parent is skipped.
-- Returns true when the parent became ready, and the number of dependencies that are left.
function M.notify(n)
  local prefix, parent_id = n.prefix, n.parent_id
  local job_key = n.job_key or prefix .. 'job:' .. parent_id
  local deps_key = n.deps_key or prefix .. 'deps:' .. parent_id
  local parent = redis.call('HMGET', job_key, 'state', 'name', 'id', 'depsCompleted')
  if not (parent[1] or parent[2] or parent[3]) then
    return false, redis.call('SCARD', deps_key)
  end
  if redis.call('HSETNX', job_key, 'depdone:' .. n.member, 1) == 0 then
    return false, redis.call('SCARD', deps_key) - L.numbers.int(parent[4], 0)
  end
  local done = L.hashes.add(job_key, 'depsCompleted', 1)
  local left = redis.call('SCARD', deps_key) - done
  if left > 0 or parent[1] ~= 'waiting-children' then
    return false, left
  end
  local stream_key, events_key = n.stream_key or prefix .. 'stream', n.events_key or prefix .. 'events'
  M.wake(job_key, stream_key, events_key, parent_id, parent[2])
  return true, left
end

-- Notifies the additional parents of a job that are in its own queue; others may be in another slot. Returns how many
-- there are in all.
function M.notify_all(prefix, job_id)
  local own, members = string.sub(prefix, 1, -2), redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)
  for _, member in ipairs(members) do
    local queue, parent_id = string.match(member, '^(.*):([^:]*)$')
    if queue == own then
      M.notify({ prefix = prefix, parent_id = parent_id, member = own .. ':' .. job_id })
    end
  end
  return #members
end
