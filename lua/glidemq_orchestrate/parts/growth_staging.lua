-- Stages nodes to add to a flow. Nodes have the form of gmo_stage_flow; edges to existing nodes of the flow are in the
-- header: after = [[old ref, new ref], ...] (the new one waits), before = [[new ref, old ref, name], ...] (the old one
-- waits for the new one of that name too).
-- Header JSON {id, growth, batch, chunk, chunks, after, before}: a batch is all or nothing. Its last chunk, or any
-- later one, has the total number of `chunks`, and seals the batch when all have arrived.
L.growth_staging = {}

-- Whether the flow already has this node from the same growth: a repeat, or a rerun node.
local function is_same(s, node, row)
  return redis.call('HGET', node.prefix .. 'job:' .. node.id, 'gmo:grown') == s.header.growth
    and (node.row == '' or row:match('^%[[^,]*(,.*)$') == node.row:match('^%[[^,]*(,.*)$'))
end

-- The new nodes; nil and an error when a name is taken.
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
      return nil, redis.error_reply('GMO_NODE_EXISTS the flow already has a node ' .. node.name)
    end
    node.is_left = staged and batch ~= s.header.batch -- of a batch that was never sealed
    if not row and (not staged or node.is_left or old_row == '') then
      fresh[#fresh + 1] = node
    end
  end
  return fresh
end

-- Stages a node or a piece of one.
local function write(s, node, now)
  if node.is_left then
    L.grow.unlink_row(s.table, node.name, node.ref)
  end
  if node.row == '' then
    L.stage.write_edges(node)
  else
    s.model = L.stage.write_job(node, s.model, s.home, s.header.id, now, 'gmo:grown', s.header.growth)
    redis.call('HINCRBY', s.table .. ':meta', 'new:' .. s.header.batch, 1)
  end
  redis.call('HSET', s.table, node.name, s.header.batch .. '\n' .. node.row .. '\n' .. node.ref)
end

-- Stages the edges between new and old nodes.
local function write_edges(s)
  for _, edge in ipairs(s.header.after or {}) do
    redis.call('RPUSH', s.table .. ':edges', cjson.encode { s.header.batch, edge[1], edge[2] })
  end
  for _, edge in ipairs(s.header.before or {}) do
    redis.call('RPUSH', s.table .. ':held', cjson.encode { s.header.batch, edge[1], edge[2], edge[3] })
  end
end

-- Seals the batch and counts its nodes; false while chunks are missing.
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

-- Stages a chunk. s: home, key, header, ref and token of the attempt or nil. Returns nil, or an error reply when
-- nothing was changed.
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
    redis.call('HSET', prefix .. 'job:' .. job_id, 'gmo:grows', '1') -- its end checks for a growth
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

-- The error reply for a batch with missing chunks.
local function incomplete(s)
  return redis.error_reply('GMO_FLOW_INCOMPLETE chunks of the nodes added to flow ' .. s.header.id .. ' are missing')
end

L.growth_staging.seal = seal
L.growth_staging.stage = stage
L.growth_staging.incomplete = incomplete
