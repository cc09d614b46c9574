-- generations: a flow id has generations 0, 1, 2, ... Each is a flow with its own record, tables and jobs, stored under
-- the flow id (generation 0) or under "<flow id>{<number>.<digits>}"; users' ids contain no brace.
--   <home>gmo:generations:<flow id>   stream, created with generation 1: an entry "<number>-1" for each generation that
--                                     began, with the fields id (the stored id), digest, path, request, how; the last
--                                     one is current. MAX of them are kept, with their records.
-- A record has the field `superseded`, the number of its successor, once that has begun; and the field `after`, the id
-- of its predecessor, until the predecessor has ended and this generation has adopted what it carries over. Before that
-- none of its nodes is released.
--   <flow>:carried   list of "<ref>\n<job id>": completed nodes of the predecessor that are carried over, each with the
--                    id under which its dependents were staged, and a + while these are being moved; without an id if
--                    its dependents are the same and carried over too
L.generations = {}
local SLICE, BUDGET, MOVED, MAX = 50, 100, 500, 100

-- The flow id and the number in the stored id of a generation.
local function split(stored)
  local id, number = stored:match('^(.+){(%d+)%.%x+}$')
  return id or stored, tonumber(number) or 0
end

-- The key of the stream of the generations of a flow.
function L.generations.key(home, stored)
  return home .. 'gmo:generations:' .. split(stored)
end

-- The fields of the entries of a stream of generations, by name, and the ids of the entries; oldest first, at most `count`.
local function entries(key, count)
  local found, ids = {}, {}
  for i, entry in ipairs(redis.call('XRANGE', key, '-', '+', 'COUNT', count)) do
    ids[i], found[i] = entry[1], {}
    for at = 1, #entry[2], 2 do
      found[i][entry[2][at]] = entry[2][at + 1]
    end
  end
  return found, ids
end

-- The stored id of the current generation of a flow.
function L.generations.current(key, stored)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  for at = 1, last and #last[2] or 0, 2 do
    if last[2][at] == 'id' then
      return last[2][at + 1]
    end
  end
  return (split(stored))
end

-- An error reply when another generation has begun, else nil.
function L.generations.refusal(key, stored)
  local by = redis.call('HGET', key, 'superseded')
  if by then
    local id, number = split(stored)
    return redis.error_reply('GMO_SUPERSEDED generation ' .. number .. ' of flow ' .. id .. ' was superseded by generation ' .. by)
  end
end

-- Notes in the stream that a generation began. The first one also notes generation 0.
local function note(key, home, new, how)
  local number = select(2, split(new))
  if redis.call('EXISTS', key) == 0 then
    local first = split(new)
    local v = redis.call('HMGET', L.record.key(home, first), 'digest', 'path', 'request')
    redis.call('XADD', key, '0-1', 'id', first, 'digest', v[1] or '', 'path', v[2] or '', 'request', v[3] or '', 'how', '')
  end
  local v = redis.call('HMGET', L.record.key(home, new), 'digest', 'path', 'request')
  redis.call('XADD', key, number .. '-1', 'id', new, 'digest', v[1], 'path', v[2] or '', 'request', v[3] or '', 'how', how)
end

-- Removes the oldest generations beyond MAX, provided that their jobs were removed.
local function trim(key, home)
  local surplus = redis.call('XLEN', key) - MAX
  if surplus <= 0 then
    return
  end
  local found, ids = entries(key, surplus)
  for i, generation in ipairs(found) do
    local record = L.record.key(home, generation.id)
    if redis.call('EXISTS', record .. ':nodes') == 0 then
      redis.call('UNLINK', record)
      redis.call('XDEL', key, ids[i])
    end
  end
end

-- Lets the records of all generations expire after `ms`, or makes them permanent if that is nil: an expired flow
-- restarts.
function L.generations.expire(home, stored, ms)
  local keys = { L.generations.key(home, stored) }
  for _, generation in ipairs((entries(keys[1], 2 * MAX))) do
    keys[#keys + 1] = L.record.key(home, generation.id)
  end
  for _, key in ipairs(keys) do
    if ms then
      redis.call('PEXPIRE', key, ms, 'NX')
    else
      redis.call('PERSIST', key)
    end
  end
end

-- Begins a staged generation in place of the previous one, which is cancelled if it runs.
function L.generations.begin(home, before, new, how, now)
  local key, old, number = L.generations.key(home, new), L.record.key(home, before), select(2, split(new))
  note(key, home, new, how)
  L.generations.expire(home, new, nil)
  trim(key, home)
  redis.call('ZREM', home .. 'gmo:expiring', before)
  redis.call('HSET', old, 'superseded', number)
  L.settle.cancel(home, before, 'generation ' .. number .. ' began', now)
  redis.call('HSET', L.record.key(home, new), 'after', before)
  L.start.flow(home, new, now)
end

-- Adopts a completed node of the previous generation: gives it the dependents staged here and notifies them of its end.
-- Its own dependencies are carried over too. Returns whether it is done, and the cost.
local function adopt(flow, ref, staged_id, is_begun, now)
  local prefix, job_id = L.record.split(ref)
  local job_key, staged, parents = prefix .. 'job:' .. job_id, prefix .. 'parents:' .. staged_id, prefix .. 'parents:' .. job_id
  if staged_id == '' then
    if redis.call('EXISTS', job_key) == 1 then
      redis.call('HSET', job_key, 'gmo:flow', flow.id)
    end
    return true, 1
  elseif not is_begun then
    if redis.call('EXISTS', job_key) == 1 then
      redis.call('HSET', job_key, 'gmo:flow', flow.id)
      redis.call('HDEL', job_key, 'parentIds', 'parentQueues')
    end
    L.dependents.forget(prefix, job_id)
    redis.call('UNLINK', parents)
  end
  local members = redis.call('SPOP', staged, MOVED)
  if #members > 0 then
    redis.call('SADD', parents, unpack(members))
  end
  if #members == MOVED then
    return false, BUDGET
  elseif is_begun or #members > 0 then
    local node = redis.call('HGET', job_key, 'gmo:node') or job_id
    L.dependents.notify(flow, prefix, job_id, now, { outcome = 'completed', cause = node })
  end
  return true, 1 + #members
end

-- Removes a slice of the nodes staged to be carried over by a generation that never began.
function L.generations.forget_carried(key)
  for _, entry in ipairs(redis.call('LPOP', key .. ':carried', SLICE) or {}) do
    local ref, staged_id = entry:match('^(.*)\n([^\n]*)$')
    if staged_id ~= '' then
      redis.call('UNLINK', L.record.split(ref) .. 'parents:' .. staged_id)
    end
  end
end

-- Does a slice of the work before the first release: ends the previous generation, adopts carried-over nodes, and
-- schedules the removal of the remaining jobs of the previous generation. Returns how much remains, at least 1.
function L.generations.follow(flow, key, before, now)
  if redis.call('HGET', L.record.key(flow.home, before), 'state') == 'running' then
    return L.advance.slice(flow.home, before, now) + 1
  end
  local spent = 0
  while spent < BUDGET do
    local entry = redis.call('LPOP', key .. ':carried')
    if not entry then
      break
    end
    local ref, staged_id, mark = entry:match('^(.*)\n([^\n+]*)(%+?)$')
    local is_done, cost = adopt(flow, ref, staged_id, mark == '+', now)
    if not is_done then
      redis.call('LPUSH', key .. ':carried', ref .. '\n' .. staged_id .. '+')
    end
    spent = spent + cost
  end
  local left = redis.call('LLEN', key .. ':carried')
  if left == 0 then
    redis.call('HDEL', key, 'after')
    L.index.removed(flow.home, before)
    redis.call('HSETNX', L.record.key(flow.home, before), 'expired_at', now)
    redis.call('ZADD', flow.home .. 'gmo:expiring', now, before)
    L.settle.end_if_done(flow, key, now) -- if all nodes were carried over
  end
  return left + 1
end

L.generations.split = split
