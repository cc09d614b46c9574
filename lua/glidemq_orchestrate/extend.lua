-- Staging what is added to a flow. Nodes come as in gmo_stage_flow; edges to nodes that are in the flow already come
-- in the header: after = [[old ref, new ref], ...] (the new one waits), before = [[new ref, old ref, name], ...] (the
-- old one waits too for the new one of that name).
-- Header JSON {id, growth, batch, chunk, chunks, after, before}: a batch is all or nothing. Its last chunk, or any
-- later one, has `chunks`, the number of all, and seals it when they are all there.

-- Whether the flow has this node from the same growth already: a repeat, or a node that runs again.
local function is_same(s, node, row)
  return redis.call('HGET', node.prefix .. 'job:' .. node.id, 'gmo:grown') == s.header.growth
    and (node.row == '' or row:match('^%[[^,]*(,.*)$') == node.row:match('^%[[^,]*(,.*)$'))
end

-- Sorts out what is new. Returns nil and an error when a name is taken.
local function fresh_nodes(s, nodes)
  local fresh = {}
  for _, node in ipairs(nodes) do
    local row = redis.call('HGET', s.key .. ':nodes', node.name)
    local staged = redis.call('HGET', s.table, node.name)
    local batch, old_row = nil, nil
    if staged then
      batch, old_row = L.grow.row(staged)
    end
    local is_taken = row and not is_same(s, node, row)
      or staged and batch ~= s.header.batch and redis.call('HEXISTS', s.table .. ':meta', 'sealed:' .. batch) == 1
      or not row and not staged and redis.call('EXISTS', node.prefix .. 'job:' .. node.id) == 1
    if is_taken then
      return nil, redis.error_reply('GMO_NODE_EXISTS the flow has a node ' .. node.name .. ' already')
    end
    node.is_left = staged and batch ~= s.header.batch -- of a batch that was never sealed
    if not row and (not staged or node.is_left or old_row == '') then
      fresh[#fresh + 1] = node
    end
  end
  return fresh
end

local function write(s, node, now)
  if node.is_left then
    L.grow.unlink_row(s.table, node.name, node.ref)
  end
  if node.row == '' then
    L.stage.write_edges(node)
  else
    L.stage.write_job(node, s.home, s.header.id, now, 'gmo:grown', s.header.growth)
    redis.call('HINCRBY', s.table .. ':meta', 'new:' .. s.header.batch, 1)
  end
  redis.call('HSET', s.table, node.name, s.header.batch .. '\n' .. node.row .. '\n' .. node.ref)
end

local function write_edges(s)
  for _, edge in ipairs(s.header.after or {}) do
    redis.call('RPUSH', s.table .. ':edges', cjson.encode { s.header.batch, edge[1], edge[2] })
  end
  for _, edge in ipairs(s.header.before or {}) do
    redis.call('RPUSH', s.table .. ':held', cjson.encode { s.header.batch, edge[1], edge[2], edge[3] })
  end
end

-- Counts the chunk; returns whether the batch is complete, or nil while chunks are missing.
local function seal(s)
  local meta, batch = s.table .. ':meta', s.header.batch
  local chunks = redis.call('HGET', meta, 'chunks:' .. batch)
  if tonumber(chunks) ~= s.header.chunks then
    return false
  end
  if redis.call('HSETNX', meta, 'sealed:' .. batch, '1') == 1 then
    redis.call('HINCRBY', meta, 'count', redis.call('HGET', meta, 'new:' .. batch) or 0)
  end
  return true
end

-- s: home, key, header, ref and token of the attempt or nil. Returns nil, or an error reply with nothing changed.
local function stage(s, nodes, now)
  s.table = L.grow.key(s.home, s.header.growth)
  local fresh, refused = fresh_nodes(s, nodes)
  if not fresh then
    return refused
  end
  local meta, chunk = s.table .. ':meta', 'chunk:' .. s.header.batch .. ':' .. s.header.chunk
  redis.call('HSET', meta, 'flow', s.header.id)
  if s.ref then
    redis.call('HSET', meta, 'ref', s.ref, 'token', s.token)
    local prefix, job_id = L.record.split(s.ref)
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:grows', '1') -- its end looks for it only then
  end
  redis.call('ZADD', s.home .. 'gmo:growing', now, s.header.growth .. '\n' .. s.header.id)
  for _, node in ipairs(fresh) do
    write(s, node, now)
  end
  if redis.call('HSETNX', meta, chunk, '1') == 1 then
    redis.call('HINCRBY', meta, 'chunks:' .. s.header.batch, 1)
    write_edges(s)
  end
end

local function incomplete(s)
  return redis.error_reply('GMO_FLOW_INCOMPLETE not all of what is added to flow ' .. s.header.id .. ' is there')
end

-- gmo_grow: stage a chunk of what an attempt adds to its flow when it completes.
-- KEYS  1 job hash of the attempt   2 flow hash   3.. id key of each queue
-- ARGS  1 now_ms, proof, 7 header JSON, then nodes
-- REPLY integer: 1, or 0 when a slice of what an earlier attempt had staged was removed first: send it again
-- ERROR GMO_STALE, GMO_NODE_EXISTS, GMO_FLOW_INCOMPLETE (chunks are missing before the last)
-- EFFECTS jobs and growth tables; the flow and its counts stay as they are until its result is taken. Repeatable.
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
  local refused = stage(s, L.stage.read_nodes(keys, 3, args, 8), args[1])
  if refused then
    return refused
  end
  return header.chunks and not seal(s) and incomplete(s) or 1
end

-- gmo_extend: stage a chunk of what is added to a flow from outside; the last one adds all of it.
-- KEYS  1 flow hash   2.. id key of each queue
-- ARGS  1 now_ms   2 header JSON, then nodes
-- REPLY state of the flow
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED, GMO_FLOW_ENDED (it is neither running nor completed), GMO_NODE_EXISTS,
--   GMO_FLOW_INCOMPLETE (chunks are missing before the last)
-- EFFECTS jobs and growth tables; with the last chunk the nodes are the flow's, which runs (again). Repeatable.
-- EVENT added {name} for each new node; flow.extended {flowId} on the events stream of the home queue
local function extend(keys, args)
  local header, now = cjson.decode(args[2]), tonumber(args[1])
  local gone = L.retain.refusal(keys[1], header.id)
  if gone then
    return gone
  end
  local state = redis.call('HGET', keys[1], 'state')
  if state ~= 'running' and state ~= 'completed' then
    return redis.error_reply('GMO_FLOW_ENDED flow ' .. header.id .. ' is ' .. state .. ' and cannot be extended')
  end
  local s = { home = L.record.home(keys[1], header.id), key = keys[1], header = header }
  if redis.call('SISMEMBER', s.key .. ':growing', header.growth) == 1 then
    return state -- a repeat: it is joining already
  end
  local refused = stage(s, L.stage.read_nodes(keys, 2, args, 3), args[1])
  if refused then
    return refused
  end
  if not header.chunks then
    return state
  elseif not seal(s) then
    return incomplete(s)
  end
  local count = tonumber(redis.call('HGET', s.table .. ':meta', 'count')) or 0
  if count == 0 then
    L.grow.drop(s.home, header.growth, header.id)
    return state
  end
  L.grow.begin({ home = s.home, id = header.id }, header.growth, count)
  if state == 'completed' then
    redis.call('HDEL', s.key, 'finished_at')
    redis.call('HSET', s.key, 'state', 'running')
    L.due.flow(s.home, header.id, now)
    L.index.moved(s.home, header.id, state, 'running', now)
  end
  L.events.emit(s.home .. 'events', 'flow.extended', '', 'flowId', header.id)
  L.advance.slice(s.home, header.id, now)
  return redis.call('HGET', s.key, 'state')
end

-- gmo_drop_growth: remove a slice of what was staged for a flow and did not join it.
-- KEYS  1 flow hash      ARGS  1 now_ms (unused)   2 flow id   3 growth id
-- REPLY integer: nodes left (0 = gone, or it is joining the flow)
local function drop_growth(keys, args)
  return L.grow.drop(L.record.home(keys[1], args[2]), args[3], args[2])
end

redis.register_function('gmo_grow', grow)
redis.register_function('gmo_extend', extend)
redis.register_function { function_name = 'gmo_drop_growth', callback = drop_growth, flags = { 'allow-oom' } }
