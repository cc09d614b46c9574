-- gmo_extend: stage a chunk of the nodes of an extension of a flow; the last chunk adds all of them.
-- KEYS  1 flow hash   2.. id key of each queue
-- ARGS  1 now_ms   2 header JSON, then nodes
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED, GMO_SUPERSEDED, GMO_FLOW_ENDED (not running or completed), GMO_NODE_EXISTS,
--   GMO_FLOW_INCOMPLETE (chunks are missing before the last)
-- EFFECTS jobs and growth tables; with the last chunk the nodes join the flow, which runs (again). Idempotent.
-- EVENT added {name} for each new node; flow.extended {flowId} on the events stream of the home queue
local function extend(keys, args)
  local header, now = cjson.decode(args[2]), tonumber(args[1])
  local expired = L.retain.refusal(keys[1], header.id)
  if expired then
    return expired
  end
  local state = redis.call('HGET', keys[1], 'state')
  if state ~= 'running' and state ~= 'completed' then
    return redis.error_reply('GMO_FLOW_ENDED flow ' .. L.generations.split(header.id) .. ' is ' .. state .. ' and cannot be extended')
  end
  local s = { home = L.record.home(keys[1], header.id), key = keys[1], header = header }
  if redis.call('SISMEMBER', s.key .. ':growing', header.growth) == 1 then
    return state -- a repeat: they are already joining
  end
  local refused = L.growth_staging.stage(s, L.stage.read_nodes(keys, 2, args, 3), args[1])
  if refused then
    return refused
  end
  if not header.chunks then
    return state
  elseif not L.growth_staging.seal(s) then
    return L.growth_staging.incomplete(s)
  end
  local count = tonumber(redis.call('HGET', s.table .. ':meta', 'count')) or 0
  if count == 0 then
    L.grow.drop(s.home, header.growth, header.id)
    return state
  end
  L.join.begin({ home = s.home, id = header.id }, header.growth, count)
  redis.call('HINCRBY', s.key, 'extensions', 1)
  if state == 'completed' then
    redis.call('HDEL', s.key, 'finished_at')
    redis.call('HSET', s.key, 'state', 'running')
    L.due.flow(s.home, header.id, now)
    L.index.moved(s.home, header.id, state, 'running', now)
  end
  L.flow_events.emit(s.home, 'flow.extended', header.id)
  L.advance.slice(s.home, header.id, now)
  return redis.call('HGET', s.key, 'state')
end

redis.register_function('gmo_extend', extend)
