-- Growth: nodes that are added to a flow while it runs, by one of its nodes or from outside. They are staged first,
-- where nothing can start or count them, and join the flow together: those of a node with its completion.
--   <home>gmo:grow:<growth id>         hash: node name -> "<batch>\n<table JSON>\n<ref>", staged
--   <home>gmo:grow:<growth id>:edges   list of JSON [batch, ref, ref]: edges to nodes that are in the flow already,
--                                      "before" edges (new, old, true) first, since they hold the old one back
--   <home>gmo:grow:<growth id>:meta    hash: flow, ref and token of the attempt; new:<batch>, chunk:<batch>:<n>,
--                                      chunks:<batch>, sealed:<batch>; count = nodes of sealed batches
--   <home>gmo:growing                  zset: "<growth id>\n<flow id>" -> when somebody last staged there
--   <flow>:growing                     set of growth ids that are joining, slice by slice; the flow cannot end before
-- The growth id of a node is its job id. What a node adds depends on that node, if on nothing else: the node's
-- dependents are told last, so that no added node runs before all of them are in the flow.
L.grow = {}

local SLICE = 50

function L.grow.key(home, growth)
  return home .. 'gmo:grow:' .. growth
end

-- The parts of a staged row: batch, table JSON ('' for a piece of a node), ref.
function L.grow.row(value)
  return value:match('^([^\n]*)\n([^\n]*)\n(.*)$')
end

local function forget(home, growth, flow_id)
  local key = L.grow.key(home, growth)
  redis.call('UNLINK', key, key .. ':edges', key .. ':meta')
  redis.call('ZREM', home .. 'gmo:growing', growth .. '\n' .. flow_id)
end

function L.grow.unlink_row(key, name, ref)
  L.jobs.unlink(L.record.split(ref))
  redis.call('HDEL', key, name)
end

-- Removes a slice of what was staged and has not begun to join; returns how many nodes are left.
function L.grow.drop(home, growth, flow_id)
  local key = L.grow.key(home, growth)
  if redis.call('SISMEMBER', L.record.key(home, flow_id) .. ':growing', growth) == 1 then
    return 0
  end
  local page = redis.call('HRANDFIELD', key, SLICE, 'WITHVALUES')
  for i = 1, #page, 2 do
    local _, _, ref = L.grow.row(page[i + 1])
    L.grow.unlink_row(key, page[i], ref)
  end
  local left = redis.call('HLEN', key)
  if left == 0 then
    forget(home, growth, flow_id)
  end
  return left
end

-- A node has failed for good: what it staged is left to the sweep, at once.
function L.grow.abandon(flow, job_id)
  redis.call('ZADD', flow.home .. 'gmo:growing', 'XX', 0, job_id .. '\n' .. flow.id)
end

-- One slice for gmo_sweep; returns whether there was anything to look at.
function L.grow.sweep(home, before)
  local member = redis.call('ZRANGEBYSCORE', home .. 'gmo:growing', '-inf', before, 'LIMIT', 0, 1)[1]
  if not member then
    return false
  end
  local growth, flow_id = member:match('^([^\n]*)\n(.*)$')
  local meta = redis.call('HMGET', L.grow.key(home, growth) .. ':meta', 'ref', 'token')
  if meta[1] and meta[2] then
    local prefix, job_id = L.record.split(meta[1])
    local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:token')
    if job[1] == 'active' and job[2] == meta[2] then -- a long attempt; look again when others have had their turn
      redis.call('ZADD', home .. 'gmo:growing', before + 1, member)
      return true
    end
  end
  L.grow.drop(home, growth, flow_id)
  return true
end

-- The nodes of the sealed batches belong to the flow from now on; gmo_advance_flow brings them in.
function L.grow.begin(flow, growth, count)
  local key = L.record.key(flow.home, flow.id)
  redis.call('HINCRBY', key, 'total', count)
  redis.call('SADD', key .. ':growing', growth)
  redis.call('ZREM', flow.home .. 'gmo:growing', growth .. '\n' .. flow.id)
  redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
end

local function admit(key, table_key, sealed, page)
  for i = 1, #page, 2 do
    local batch, row, ref = L.grow.row(page[i + 1])
    if sealed['sealed:' .. batch] and row ~= '' then
      local prefix, job_id = L.record.split(ref)
      redis.call('HSET', key .. ':nodes', page[i], row)
      redis.call('SADD', key .. ':open', ref)
      if redis.call('EXISTS', prefix .. 'deps:' .. job_id) == 0 then
        redis.call('SADD', key .. ':ready', ref)
      end
      redis.call('HDEL', table_key, page[i])
    else
      L.grow.unlink_row(table_key, page[i], ref)
    end
  end
end

-- An old node waits for a new one too, unless it has been released already.
local function hold_back(key, new, old)
  local prefix, job_id = L.record.split(old)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node')
  local new_prefix, new_id = L.record.split(new)
  if job[1] ~= 'waiting-children' then
    redis.call('SREM', new_prefix .. 'parents:' .. new_id, old)
    return
  end
  redis.call('SADD', prefix .. 'deps:' .. job_id, new)
  local row = redis.call('HGET', key .. ':nodes', job[2])
  local name = redis.call('HGET', new_prefix .. 'job:' .. new_id, 'gmo:node')
  -- Put at its end: reading a row with thousands of names to add one would cost thousands of times as much.
  redis.call('HSET', key .. ':nodes', job[2], row:sub(1, -2) .. ',' .. cjson.encode(name) .. ']')
end

-- A new node waits for an old one; when that has ended already, this is its only chance to be told.
local function wait_for(key, old, new, now)
  local prefix, job_id = L.record.split(old)
  redis.call('SADD', prefix .. 'parents:' .. job_id, new)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node')
  if job[1] == 'completed' or job[1] == 'failed' then
    L.release.tell(key, old, new, job[1] == 'failed' and (job[2] or job_id) or nil, now)
  end
end

local function step(flow, key, growth, now)
  local table_key = L.grow.key(flow.home, growth)
  local meta = L.hashes.load(table_key .. ':meta')
  local page = redis.call('HRANDFIELD', table_key, SLICE, 'WITHVALUES')
  if #page > 0 then
    admit(key, table_key, meta, page)
    return
  end
  for _, text in ipairs(redis.call('LPOP', table_key .. ':edges', SLICE) or {}) do
    local edge = cjson.decode(text)
    if meta['sealed:' .. edge[1]] then
      if edge[4] then
        hold_back(key, edge[2], edge[3])
      else
        wait_for(key, edge[2], edge[3], now)
      end
    end
  end
  if redis.call('EXISTS', table_key .. ':edges') == 0 then
    redis.call('SREM', key .. ':growing', growth)
    forget(flow.home, growth, flow.id)
    if meta.ref then
      local prefix, job_id = L.record.split(meta.ref)
      L.release.dependents(flow, prefix, job_id, now)
    end
    L.settle.end_if_over(flow, key, now)
  end
end

-- Goes on with one growth that is joining; returns how many are left.
function L.grow.go_on(flow, key, now)
  local growth = redis.call('SRANDMEMBER', key .. ':growing')
  if growth then
    step(flow, key, growth, now)
  end
  return growth and redis.call('SCARD', key .. ':growing') or 0
end

-- Whether a flow whose nodes have all ended has ended itself.
function L.grow.is_over(key)
  return redis.call('EXISTS', key .. ':growing') == 0
end

-- A node has completed: what its attempt staged joins the flow. Returns nil when that is nothing; else true:
-- gmo_advance_flow is needed, and the node's dependents are told by it.
function L.grow.commit(flow, prefix, job_id, now)
  local meta_key = L.grow.key(flow.home, job_id) .. ':meta'
  local meta = redis.call('HMGET', meta_key, 'token', 'count')
  if not meta[1] then
    return nil
  end
  if meta[1] ~= redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:token') or not meta[2] then
    L.grow.abandon(flow, job_id)
    return nil
  end
  L.grow.begin(flow, job_id, meta[2])
  local table_key = L.grow.key(flow.home, job_id)
  if redis.call('HLEN', table_key) <= SLICE and redis.call('LLEN', table_key .. ':edges') <= SLICE then
    step(flow, L.record.key(flow.home, flow.id), job_id, now)
    step(flow, L.record.key(flow.home, flow.id), job_id, now)
  end
  return true
end
