-- inputs: the results of its dependencies that a node reads when it starts. Part of fetch.lua.
L.inputs = {}
local MAX_INPUTS, MAX_INPUT_BYTES, CHEAP = 20, 262144, 2000
local ENDED = { completed = true, failed = true }

-- Some open dependencies of a node with many; nil if there is none, or the check would take too long here.
local function open_ones(prefix, job_id)
  local v, deps = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:home', 'gmo:flow'), prefix .. 'deps:' .. job_id
  local open = v[1] and v[2] and L.record.key(v[1], v[2]) .. ':open'
  if not open or (redis.call('SCARD', open) > CHEAP and redis.call('SCARD', deps) > CHEAP) then
    return nil
  end
  local found = redis.call('SINTER', deps, open)
  return #found > 0 and found or nil
end

-- The results of a node's dependencies as a flat array of name and result; false when they are too many or too large for
-- one reply, or one was removed: gmo_node_inputs returns them in pages. And the refs of the nodes among them that have not
-- ended, nil for none.
function L.inputs.read(prefix, job_id)
  local found, bytes, is_small, unended = {}, 0, true, nil
  local refs = redis.call('SRANDMEMBER', prefix .. 'deps:' .. job_id, MAX_INPUTS + 1)
  if #refs > MAX_INPUTS then
    return false, open_ones(prefix, job_id)
  end
  for _, ref in ipairs(refs) do
    local queue, dependency = L.record.split(ref)
    local job = redis.call('HMGET', queue .. 'job:' .. dependency, 'gmo:node', 'state', 'returnvalue', 'gmo:skipped')
    if job[2] == 'completed' and not job[4] and is_small then
      local result = job[3] or 'null'
      bytes = bytes + #result
      found[#found + 1], found[#found + 2] = job[1] or dependency, result
    elseif job[1] and job[2] and not ENDED[job[2]] then
      unended = unended or {}
      unended[#unended + 1] = ref
    end
    is_small = is_small and job[2] and bytes <= MAX_INPUT_BYTES
  end
  return is_small and found or false, unended
end

-- What a started job reads: inputs, the refs of dependencies that have not ended (nil for none), and if it is an element
-- of an array, which one (see element_jobs.lua). `v`: its fields, see fetch.lua.
function L.inputs.of(x, job_id, v)
  if v[5] then
    return L.inputs.read(x.prefix, job_id)
  end
  local array_id = L.element_jobs.array_of(x.prefix, job_id)
  if array_id then
    return L.element_jobs.about(x, job_id, array_id, v)
  end
  return false
end

-- Makes a node that was just started wait again if dependencies of it rerun, unless its rule allows it to run before
-- they end. Returns whether it waits. They may have restarted since it was released, or since its last attempt.
function L.inputs.wait(x, job_id, entry_id, unended)
  local ref, job_key = x.prefix .. job_id, x.prefix .. 'job:' .. job_id
  for _, dependency in ipairs(unended) do
    L.rules.forget(dependency, ref)
  end
  if redis.call('HEXISTS', job_key, 'gmo:rule') == 1 then
    L.rules.guard(x.prefix, job_id)
    local v = redis.call('HMGET', job_key, 'gmo:home', 'gmo:flow')
    if L.rules.decide(L.record.key(v[1], v[2]), ref) then
      L.rules.unguard(x.prefix, job_id)
      return false
    end
  end
  if entry_id == '' then
    redis.call('ZREM', x.prefix .. 'gmo:list-held', job_id)
  end
  L.park.await_children({ prefix = x.prefix, job_id = job_id, entry_id = entry_id, group = x.group, now = x.now },
    L.jobs.read(x.prefix, job_id))
  redis.call('HDEL', job_key, 'gmo:token', 'gmo:entry', 'processedOn', 'lastActive')
  return true
end
