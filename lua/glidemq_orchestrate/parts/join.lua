-- How staged nodes (grow.lua) join their flow: first all nodes, then the edges that make old nodes wait, then those
-- that release new nodes; finally the dependents of the node that added them are notified. In slices, by any caller.
L.join = {}

local SLICE, HELD_SLICE, EDGE_SLICE, MAX_ROW = 50, 500, 25, 65536
local ENDED = { completed = true, failed = true, skipped = true }

-- Counts the nodes of the sealed batches as the flow's; gmo_advance_flow adds them.
function L.join.begin(flow, growth, count)
  local key = L.record.key(flow.home, flow.id)
  redis.call('HINCRBY', key, 'total', count)
  redis.call('SADD', key .. ':growing', growth)
  redis.call('ZREM', flow.home .. 'gmo:growing', growth .. '\n' .. flow.id)
  redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
end

-- Adds a page of staged nodes to the tables of the flow; removes those of batches that were not sealed.
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

-- Makes an old node wait for new ones too, unless it was released. Their names are appended to its row, for display,
-- until the row is long: rewriting a row of a megabyte in each slice would cost more than the rest.
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
      redis.call('HSET', key .. ':nodes', job[2], row:sub(1, -2) .. ',' .. table.concat(names, ',') .. ']')
    end
    return
  end
  for _, new in ipairs(news) do
    local new_prefix, new_id = L.record.split(new)
    redis.call('SREM', new_prefix .. 'parents:' .. new_id, old)
  end
end

-- Does a slice of the edges that make old nodes wait.
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

-- Makes a new node wait for an old one; if that has already ended, the new one is notified here, since no later call
-- will do it.
local function wait_for(flow, key, old, new, now)
  local prefix, job_id = L.record.split(old)
  redis.call('SADD', prefix .. 'parents:' .. job_id, new)
  local job = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:node', 'gmo:skipped', 'gmo:on_failure',
    'gmo:removed')
  local ended = job[1] or (job[5] or ''):match('^%a+') or L.read.end_of_removed(key, old) -- of a job that was removed
  if ENDED[ended] then
    local notice = { outcome = job[3] and 'skipped' or ended, cause = job[2] or job_id, on_failure = job[4] }
    L.release.notify(flow, key, old, new, notice, now)
  end
end

-- Does the next slice of one growth: nodes, then edges of old nodes, then those of new ones.
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
      L.dependents.notify(flow, prefix, job_id, now, { outcome = 'completed', cause = grower.node })
    end
    L.settle.end_if_done(flow, key, now)
  end
end

-- Does a slice of one growth that is joining; returns about how much work remains.
function L.join.continue(flow, key, now)
  local growth = redis.call('SRANDMEMBER', key .. ':growing')
  if not growth then
    return 0
  end
  step(flow, key, growth, now)
  local table_key = L.grow.key(flow.home, growth)
  return redis.call('SCARD', key .. ':growing') + redis.call('HLEN', table_key) + redis.call('LLEN', table_key .. ':edges')
end

-- Whether no growth is joining, so that a flow whose nodes have all ended has ended.
function L.join.has_joined(key)
  return redis.call('EXISTS', key .. ':growing') == 0
end

-- Lets the nodes staged by a completed attempt join the flow. Returns nil when there are none; else true:
-- gmo_advance_flow is then needed, and notifies the node's dependents.
function L.join.commit(flow, prefix, job_id, now)
  local meta_key = L.grow.key(flow.home, job_id) .. ':meta'
  local meta = redis.call('HMGET', meta_key, 'token', 'count')
  if not meta[1] then
    return nil
  end
  if meta[1] ~= redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:token') or not meta[2] then
    L.grow.abandon(flow, job_id)
    return nil
  end
  L.join.begin(flow, job_id, meta[2])
  redis.call('HSET', L.record.key(flow.home, flow.id), 'grown', '1')
  local table_key = L.grow.key(flow.home, job_id)
  local edges = redis.call('LLEN', table_key .. ':held') + redis.call('LLEN', table_key .. ':edges')
  if redis.call('HLEN', table_key) <= SLICE and edges <= EDGE_SLICE then
    for _ = 1, 3 do -- rows, then the edges of either list
      step(flow, L.record.key(flow.home, flow.id), job_id, now)
    end
  end
  return true
end
