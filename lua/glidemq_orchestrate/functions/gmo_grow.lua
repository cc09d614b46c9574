-- gmo_grow: stage a chunk of the nodes that an attempt adds to its flow when it completes.
-- KEYS  1 job hash of the attempt   2 flow hash   3.. id key of each queue
-- ARGS  1 now_ms, proof, 7 header JSON, then nodes
-- REPLY integer: 1, or 0 when only a slice of the nodes staged by an earlier attempt was removed: send all chunks again
-- ERROR GMO_STALE, GMO_NODE_EXISTS, GMO_FLOW_INCOMPLETE (chunks are missing before the last)
-- EFFECTS jobs and growth tables; the flow and its counts do not change until the attempt completes. Idempotent.
-- EVENT added {name} for each new node, in its queue
local function grow(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  local header = cjson.decode(args[7])
  local s = { home = L.record.home(keys[2], header.id), key = keys[2], header = header,
    ref = lease.prefix .. lease.job_id, token = args[5] }
  local token = redis.call('HGET', L.grow.key(s.home, header.growth) .. ':meta', 'token')
  if token and token ~= s.token then
    L.grow.drop(s.home, header.growth, header.id)
    return 0
  end
  local refused = L.growth_staging.stage(s, L.stage.read_nodes(keys, 3, args, 8), args[1])
  if refused then
    return refused
  end
  return header.chunks and not L.growth_staging.seal(s) and L.growth_staging.incomplete(s) or 1
end

redis.register_function('gmo_grow', grow)
