-- reopen: nodes of a flow that rerun wait again, whether they have ended, are ready or run.
L.reopen = {}
local SEARCHED = 1000
local ENDED = { completed = true, failed = true }

-- Removes the end of a node from the counts of the flow.
local function uncount(key, ref, v)
  redis.call('SREM', key .. ':failed', ref)
  if v[1] == 'failed' or v[5] then
    redis.call('HINCRBY', key, 'failed', -1)
    if v[3] == 'ignore' then
      redis.call('HINCRBY', key, 'ignored', -1)
    end
  else
    redis.call('HINCRBY', key, v[2] and 'skipped' or 'completed', -1)
  end
end

-- Takes an open node from the workers. A late end by a Node worker, which has no token, must be refused (gmo:withdrawn,
-- see foreign.lua); and if a Node worker released the node, its stream entry is unknown.
local function take_back(flow, prefix, job_id, state, token, now)
  local job_key = prefix .. 'job:' .. job_id
  if state == 'active' and not token then
    redis.call('HSET', job_key, 'gmo:withdrawn', '1')
  elseif state == 'waiting' and redis.call('HEXISTS', job_key, 'gmo:entry') == 0 then
    L.stream.remove_job(prefix .. 'stream', 'workers', job_id, redis.call('HGET', job_key, 'timestamp'), SEARCHED)
  end
  L.end_nodes.withdraw(prefix, job_id, now)
  L.grow.abandon(flow, job_id)
  redis.call('ZREM', prefix .. 'suspended', job_id)
end

-- Opens a node again as if it had not run. Returns whether it had ended; nil when there is nothing to undo.
function L.reopen.node(flow, key, ref, now)
  local prefix, job_id = L.record.split(ref)
  local job_key = prefix .. 'job:' .. job_id
  L.jobs.restore(prefix, job_id)
  local v = redis.call('HMGET', job_key, 'state', 'gmo:skipped', 'gmo:on_failure', 'gmo:rule', 'gmo:end', 'gmo:token',
    'gmo:waited')
  local is_open = redis.call('SISMEMBER', key .. ':open', ref) == 1
  if is_open and v[1] == 'waiting-children' and not v[7] then return nil end
  if is_open then
    take_back(flow, prefix, job_id, v[1], v[6], now)
  else
    uncount(key, ref, v[1] and v or { 'failed' }) -- a missing job has counted as failed
    redis.call('SADD', key .. ':open', ref)
  end
  local job = L.jobs.read(prefix, job_id)
  if job then
    L.fresh.reset(prefix, job_id, job, now)
  end
  if v[4] then
    L.rules.guard(prefix, job_id)
  end
  return not is_open or ENDED[v[1]] or false
end
