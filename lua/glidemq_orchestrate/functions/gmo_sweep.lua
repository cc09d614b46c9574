-- gmo_sweep: remove a slice of the due data of a home queue: abandoned submissions, flows after their retention,
--   remains of their tombstones, nodes staged by attempts that did not complete.
-- KEYS  1 <home>gmo:flows
-- ARGS  1 now_ms   2 flows and nodes last staged before this time are abandoned   3 how many ms tombstones live
-- REPLY {1 when something was removed and there may be more, 0 when nothing is due; the id of a flow that was removed,
--   possibly except for its tombstone, '' for none; how many ms that tombstone lives, 0 for none}: the caller frees the
--   id
-- EFFECTS at most 50 jobs. Idempotent, by any client at any time.

-- Calls remove(flow id) for the first flow of a list that is due. A flow that cannot be removed, because a key has
-- another type, does not block the others: it is due again much later. Returns the results of `remove`, or nil.
local function first_due(list, upto, now, remove)
  local flow_id = redis.call('ZRANGEBYSCORE', list, '-inf', upto, 'LIMIT', 0, 1)[1]
  if not flow_id then
    return nil
  end
  local is_fine, why, ms = pcall(remove, flow_id)
  if not is_fine then
    redis.call('ZADD', list, 'XX', now + L.retain.LATER, flow_id)
    error('flow ' .. flow_id .. ': ' .. (type(why) == 'table' and why.err or tostring(why)), 0)
  end
  return why, ms
end

-- Removes a slice of an abandoned submission. Returns the id of the flow if it was removed completely, else ''.
local function discard_abandoned(home, flow_id)
  local key = L.record.key(home, flow_id)
  if redis.call('HGET', key, 'state') == 'staging' then
    return L.retain.discard(key, home, flow_id) == 0 and (L.generations.split(flow_id)) or ''
  end
  redis.call('ZREM', home .. 'gmo:staging', flow_id)
  return ''
end

-- Removes a slice of a flow after its retention. Returns its id and the life of its tombstone if only that remains, the
-- id and 0 if the tombstone has ended too, else ''. The flow is due again when its tombstone has ended: the client that
-- should free the id may have died, and a submission that found the tombstone has kept it.
local function expire(home, flow_id, now, tombstone_ms)
  local key = L.record.key(home, flow_id)
  local has_record = redis.call('EXISTS', key) == 1
  if has_record then -- from the first slice on, so that no client reads half a flow
    redis.call('HSETNX', key, 'expired_at', now)
  end
  if L.retain.remove_nodes(key, flow_id) > 0 then
    return ''
  end
  L.retain.unlink_tables(key)
  L.index.removed(home, flow_id)
  local public = L.generations.split(flow_id)
  if not has_record then
    return public, 0
  elseif redis.call('HEXISTS', key, 'superseded') == 1 then -- its record stays as long as that of the current one
    return ''
  elseif redis.call('PEXPIRE', key, tombstone_ms, 'NX') == 0 then -- it ends soon, by the clock of the server
    redis.call('ZADD', home .. 'gmo:expiring', now + L.retain.LATER, flow_id)
    return ''
  end
  L.generations.expire(home, flow_id, tombstone_ms)
  redis.call('ZADD', home .. 'gmo:expiring', now + tombstone_ms, flow_id)
  return public, tombstone_ms
end

local function sweep(keys, args)
  local home, now = keys[1]:sub(1, -#'gmo:flows' - 1), tonumber(args[1])
  local removed = first_due(home .. 'gmo:staging', args[2], now, function(flow_id)
    return discard_abandoned(home, flow_id)
  end)
  if removed then
    return { 1, removed, 0 }
  end
  local tombstone_ms
  removed, tombstone_ms = first_due(home .. 'gmo:expiring', now, now, function(flow_id)
    return expire(home, flow_id, now, tonumber(args[3]))
  end)
  if removed then
    return { 1, removed, tombstone_ms or 0 }
  end
  return { L.grow.sweep(home, args[2]) and 1 or 0, '', 0 }
end

redis.register_function { function_name = 'gmo_sweep', callback = sweep, flags = { 'allow-oom' } }
