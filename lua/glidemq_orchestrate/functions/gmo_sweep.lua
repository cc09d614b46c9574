-- gmo_sweep: remove a slice of what is due in a home queue: half-submitted flows, jobs after their retention, what
--   attempts staged and did not finish.
-- KEYS  1 <home>gmo:flows
-- ARGS  1 now_ms   2 staged things that nobody touched since then are abandoned   3 how many ms tombstones live
-- REPLY {1 when something was removed and there may be more, 0 when nothing is due; the id of a flow of which nothing
--   or only the tombstone is left, '' for none; how many ms that tombstone lives, 0 for none}: the caller frees the id
-- EFFECTS at most 50 jobs. Repeatable by anybody at any time.
-- Calls remove(flow id) for the first of a list that is due. One that cannot be removed, because a key of it holds
-- something else, keeps no other: it is tried again much later. Returns what `remove` does, or nil.
local function first_due(list, upto, now, remove)
  local flow_id = redis.call('ZRANGEBYSCORE', list, '-inf', upto, 'LIMIT', 0, 1)[1]
  if not flow_id then
    return nil
  end
  local is_fine, why = pcall(remove, flow_id)
  if not is_fine then
    redis.call('ZADD', list, 'XX', now + L.retain.LATER, flow_id)
    error('flow ' .. flow_id .. ': ' .. (type(why) == 'table' and why.err or tostring(why)), 0)
  end
  return why
end

-- Returns the id of the flow if it is gone now, or '' when there may be more to do. The next one does the same.
local function discard_abandoned(home, flow_id)
  local key = L.record.key(home, flow_id)
  if redis.call('HGET', key, 'state') == 'staging' then
    return L.retain.discard(key, home, flow_id) == 0 and flow_id or ''
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
  if L.retain.remove_nodes(key, flow_id) == 0 then
    L.retain.unlink_tables(key)
    L.index.removed(home, flow_id)
    redis.call('PEXPIRE', key, tombstone_ms)
    return flow_id
  end
  return ''
end

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

redis.register_function { function_name = 'gmo_sweep', callback = sweep, flags = { 'allow-oom' } }
