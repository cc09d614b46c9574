-- How what was staged (grow.lua) joins its flow: first all nodes, then the edges that hold old nodes back, then those
-- that let new nodes run, and last the dependents of the node that added them are told. In slices, by anybody.
L.join = {}

local SLICE, HELD_SLICE, EDGE_SLICE, MAX_ROW = 50, 500, 25, 65536

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
      redis.call('RPUSH', key .. ':order', L.order.entry(page[i], ref))
      redis.call('SADD', key .. ':open', ref)
      if L.stage.is_root(prefix, job_id, redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:rule')) then
        redis.call('SADD', key .. ':ready', ref)
      end
      redis.call('HDEL', table_key, page[i])
    else
      L.grow.unlink_row(table_key, page[i], ref)
    end
  end
end

-- An old node waits for new ones too, unless it has been released already. Their names go to the end of its row, for
-- people to read, until that is long: writing a row of a megabyte again with each slice would cost more than the rest.
local function hold_back(key, old, edges)
  local prefix, job_id = L.record.split(old)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node')
  local news, names = {}, {}
  for i, edge in ipairs(edges) do
    news[i], names[i] = edge[2], cjson.encode(edge[4])
  end
  if job[1] == 'waiting-children' then
    redis.call('SADD', prefix .. 'deps:' .. job_id, unpack(news))
    local row = redis.call('HGET', key .. ':nodes', job[2])
    if #row < MAX_ROW then
      redis.call('HSETNX', prefix .. 'job:' .. job_id, 'gmo:row', #row) -- a restart takes these names away
      redis.call('HSET', key .. ':nodes', job[2], row:sub(1, -2) .. ',' .. table.concat(names, ',') .. ']')
    end
    return
  end
  for _, new in ipairs(news) do
    local new_prefix, new_id = L.record.split(new)
    redis.call('SREM', new_prefix .. 'parents:' .. new_id, old)
  end
end
local function hold_slice(key, table_key, sealed)
  local by_old = {}
  for _, text in ipairs(redis.call('LPOP', table_key .. ':held', HELD_SLICE) or {}) do
    local edge = cjson.decode(text)
    if sealed['sealed:' .. edge[1]] then
      by_old[edge[3]] = by_old[edge[3]] or {}
      table.insert(by_old[edge[3]], edge)
    end
  end
  for old, edges in pairs(by_old) do
    hold_back(key, old, edges)
  end
end

-- A new node waits for an old one; when that has ended already, this is its only chance to be told.
local function wait_for(flow, key, old, new, now)
  local prefix, job_id = L.record.split(old)
  redis.call('SADD', prefix .. 'parents:' .. job_id, new)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node', 'gmo:skipped', 'gmo:on_failure')
  if job[1] == 'completed' or job[1] == 'failed' then
    local told = { outcome = job[3] and 'skipped' or job[1], cause = job[2] or job_id, on_failure = job[4] }
    L.release.notify(flow, key, old, new, told, now)
  end
end
local function step(flow, key, growth, now)
  local table_key = L.grow.key(flow.home, growth)
  local meta = L.hashes.load(table_key .. ':meta')
  local page = redis.call('HRANDFIELD', table_key, SLICE, 'WITHVALUES')
  if #page > 0 then
    admit(key, table_key, meta, page)
    return
  elseif redis.call('EXISTS', table_key .. ':held') == 1 then
    hold_slice(key, table_key, meta)
    return
  end
  for _, text in ipairs(redis.call('LPOP', table_key .. ':edges', EDGE_SLICE) or {}) do
    local edge = cjson.decode(text)
    if meta['sealed:' .. edge[1]] then
      wait_for(flow, key, edge[2], edge[3], now)
    end
  end
  if redis.call('EXISTS', table_key .. ':edges') == 0 then
    redis.call('SREM', key .. ':growing', growth)
    L.grow.forget(flow.home, growth, flow.id)
    if meta.ref then
      local prefix, job_id = L.record.split(meta.ref)
      local grower = L.record.of_job(prefix, job_id) or flow
      L.dependents.dependents(flow, prefix, job_id, now, { outcome = 'completed', cause = grower.node })
    end
    L.settle.end_if_over(flow, key, now)
  end
end

-- Goes on with one growth that is joining; returns about how much work is left.
function L.grow.go_on(flow, key, now)
  local growth = redis.call('SRANDMEMBER', key .. ':growing')
  if not growth then
    return 0
  end
  step(flow, key, growth, now)
  local table_key = L.grow.key(flow.home, growth)
  return redis.call('SCARD', key .. ':growing') + redis.call('HLEN', table_key) + redis.call('LLEN', table_key .. ':edges')
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
  local edges = redis.call('LLEN', table_key .. ':held') + redis.call('LLEN', table_key .. ':edges')
  if redis.call('HLEN', table_key) <= SLICE and edges <= EDGE_SLICE then
    for _ = 1, 3 do -- rows, then the edges of either list
      step(flow, L.record.key(flow.home, flow.id), job_id, now)
    end
  end
  return true
end
