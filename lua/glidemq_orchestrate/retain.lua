-- What is left of flows in the end. A flow with a retention loses its jobs and tables that long after its end; a
-- tombstone stays: its record with the field expired_at, for as long as the sweep says. Flows that were staged and
-- never started are removed without a trace, and so is what attempts staged that did not finish.
L.retain = {}

local SLICE, LATER = 50, 3600 * 1000
local TABLES = { 'nodes', 'order', 'open', 'ready', 'failed', 'blocked', 'telling', 'growing' }

-- An error reply when the flow is gone or only its tombstone is left, else nil.
function L.retain.refusal(key, flow_id)
  local found = redis.call('HMGET', key, 'id', 'expired_at')
  if not found[1] then
    return L.record.not_found(flow_id)
  end
  if found[2] then
    return redis.error_reply('GMO_FLOW_EXPIRED the jobs of flow ' .. flow_id .. ' were removed after its retention')
  end
end

local function remove_job(ref, flow_id)
  local prefix, job_id = L.record.split(ref)
  local owner = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:flow')
  if owner and owner ~= flow_id then
    return
  end
  L.jobs.unlink(prefix, job_id)
  L.telling.forget(prefix, job_id)
  redis.call('ZREM', prefix .. 'completed', job_id)
  redis.call('ZREM', prefix .. 'failed', job_id)
end

-- Removes the jobs of a slice of the nodes, and them from the tables; returns how many nodes are left.
local function remove_nodes(key, flow_id)
  local start = key:match('^(.*):{[^{}]*}:gmo:flow:')
  local page = redis.call('HRANDFIELD', key .. ':nodes', SLICE, 'WITHVALUES')
  for i = 1, #page, 2 do
    local queue, job_id = L.stage.place(page[i + 1])
    local ref = start .. ':{' .. queue .. '}:' .. job_id
    remove_job(ref, flow_id)
    -- Out of the tables too: a submission that comes before the last slice must stage the node again.
    redis.call('HDEL', key .. ':nodes', page[i])
    redis.call('SREM', key .. ':open', ref)
    redis.call('SREM', key .. ':ready', ref)
  end
  if #page == 0 then -- nodes of which only some edges were staged
    for _, ref in ipairs(redis.call('SPOP', key .. ':open', SLICE)) do
      remove_job(ref, flow_id)
    end
  end
  return math.max(redis.call('HLEN', key .. ':nodes'), redis.call('SCARD', key .. ':open'))
end

local function unlink_tables(key)
  for _, name in ipairs(TABLES) do
    redis.call('UNLINK', key .. ':' .. name)
  end
end

-- Whether nothing of the flow ever ran: it is being staged, or was cancelled meanwhile.
local function never_started(key)
  local record = redis.call('HMGET', key, 'state', 'total', 'started_at')
  return record[1] == 'staging' or (record[1] == 'cancelled' and not record[3]
    and redis.call('HLEN', key .. ':nodes') < L.numbers.int(record[2], 0))
end

-- Deletes a slice of a flow that never started; returns the nodes that are left.
local function discard(key, home, flow_id)
  local left = remove_nodes(key, flow_id)
  if left == 0 then
    L.index.removed(home, flow_id)
    unlink_tables(key)
    redis.call('SREM', home .. 'gmo:todo', flow_id)
    redis.call('UNLINK', key)
  end
  return left
end

-- gmo_discard_flow: delete a slice of a flow that never started.
-- KEYS  1 flow hash
-- ARGS  1 now_ms (unused)   2 flow id   3 digest
-- REPLY integer: nodes left (0 = gone, or it was no such flow with this digest)
-- EFFECTS on a staged flow, or one that was cancelled while it was being staged: at most 50 jobs with their sets;
--   with the last one the record and the index entries. The caller frees the id.
local function discard_flow(keys, args)
  if redis.call('HGET', keys[1], 'digest') ~= args[3] or not never_started(keys[1]) then
    return 0
  end
  return discard(keys[1], L.record.home(keys[1], args[2]), args[2])
end

-- Calls remove(flow id) for the first of a list that is due. One that cannot be removed, because a key of it holds
-- something else, keeps no other: it is tried again much later. Returns what `remove` does, or nil.
local function first_due(list, upto, now, remove)
  local flow_id = redis.call('ZRANGEBYSCORE', list, '-inf', upto, 'LIMIT', 0, 1)[1]
  if not flow_id then
    return nil
  end
  local is_fine, why = pcall(remove, flow_id)
  if not is_fine then
    redis.call('ZADD', list, 'XX', now + LATER, flow_id)
    error('flow ' .. flow_id .. ': ' .. (type(why) == 'table' and why.err or tostring(why)), 0)
  end
  return why
end

-- Returns the id of the flow if it is gone now, or '' when there may be more to do. The next one does the same.
local function discard_abandoned(home, flow_id)
  local key = L.record.key(home, flow_id)
  if redis.call('HGET', key, 'state') == 'staging' then
    return discard(key, home, flow_id) == 0 and flow_id or ''
  end
  redis.call('ZREM', home .. 'gmo:staging', flow_id)
  return ''
end

local function expire(home, flow_id, now, tombstone_ms)
  local key = L.record.key(home, flow_id)
  -- From the first slice on: what is read in between would be half a flow.
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSETNX', key, 'expired_at', now)
  end
  if remove_nodes(key, flow_id) == 0 then
    unlink_tables(key)
    L.index.removed(home, flow_id)
    redis.call('PEXPIRE', key, tombstone_ms)
    return flow_id
  end
  return ''
end

-- gmo_sweep: remove a slice of what is due in a home queue: half-submitted flows, jobs after their retention, what
--   attempts staged and did not finish.
-- KEYS  1 <home>gmo:flows
-- ARGS  1 now_ms   2 staged things that nobody touched since then are abandoned   3 how many ms tombstones live
-- REPLY {1 when something was removed and there may be more, 0 when nothing is due; the id of a flow of which nothing
--   or only the tombstone is left, '' for none; how many ms that tombstone lives, 0 for none}: the caller frees the id
-- EFFECTS at most 50 jobs. Repeatable by anybody at any time.
local function sweep(keys, args)
  local home, now = keys[1]:sub(1, -#'gmo:flows' - 1), tonumber(args[1])
  local gone = first_due(home .. 'gmo:staging', args[2], now, function(flow_id)
    return discard_abandoned(home, flow_id)
  end)
  if gone then
    return { 1, gone, 0 }
  end
  gone = first_due(home .. 'gmo:expiring', now, now, function(flow_id)
    return expire(home, flow_id, now, args[3])
  end)
  if gone then
    return { 1, gone, tonumber(args[3]) }
  end
  return { L.grow.sweep(home, args[2]) and 1 or 0, '', 0 }
end

redis.register_function { function_name = 'gmo_discard_flow', callback = discard_flow, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_sweep', callback = sweep, flags = { 'allow-oom' } }
