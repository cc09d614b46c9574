-- gmo_stage_flow: write a chunk of the nodes of a flow. Nothing runs before gmo_start_flow.
-- KEYS  1 flow hash   2.. id key of each queue of the flow. The id of the flow has been claimed, in its own slot.
-- ARGS  1 now_ms   2 header JSON {id, name, digest, total, home, labels, retention, deadline, fail_fast, request,
--       completed: how many nodes are carried over, owner: {name, lapse in ms, cancel or keep}}; for each node:
--       queue number, job id, node name, job name, data, opts, max attempts, delay_ms, table JSON,
--       dependents' ids JSON, dependents' queues JSON, more job fields JSON ('' = none; see rules.lua),
--       n, n dependency refs, m, m dependent refs
--       A node with too many edges for one call comes in pieces: all but the last have an empty table JSON and only
--       edges. The last one writes the node, so that no node starts without all its edges.
--       A node carried over from the previous generation has '=' for more job fields, its old job in place of data, no
--       dependencies, and a job id that only holds its dependents until its adoption (generations.lua); '==' if its
--       dependents are unchanged and all carried over: it has none here.
-- REPLY state of the flow: staging; in any other state nothing was changed
-- ERROR GMO_FLOW_CONFLICT: another flow has the id, or a job of a node exists outside this flow. Nothing was changed.
-- EFFECTS first chunk: record, index. Each node once: job hash (waiting-children), deps and parents sets,
--   table, order, open set, ready set (without dependencies). Idempotent: existing nodes are skipped.
-- EVENT added {name} for each new node, in its queue
local function conflict(text)
  return redis.error_reply('GMO_FLOW_CONFLICT ' .. text)
end

-- Returns an error or, for an equal flow that is past staging, its state when the flow cannot be staged; else nil, and
-- whether it already has a record.
local function refusal(keys, header)
  assert(keys[1]:sub(-9 - #header.id) == 'gmo:flow:' .. header.id, 'gmo_stage_flow: the client is older than this library')
  local found = redis.call('HMGET', keys[1], 'digest', 'state', 'path')
  if found[1] and (found[1] ~= header.digest or found[3]) then
    return conflict('flow id ' .. header.id .. ' belongs to another flow')
  end
  if found[2] and found[2] ~= 'staging' then
    return found[2]
  end
  return nil, found[2] and true or false
end

-- Adds a node without dependencies to `ready` or `roots` (see record.lua). An earlier piece of it may have had some: the
-- release of an ordinary node looks for them.
local function add_root(ready, roots, node)
  if node.more == '' and node.delay == '0' and not node.job:find('\n', 1, true) then
    roots[#roots + 1] = node.ref .. '\n' .. node.job
  elseif L.stage.is_root(node.prefix, node.id, node.rule) then
    ready[#ready + 1] = node.ref
  end
end

-- Writes new nodes, with few commands for the tables.
local function write_nodes(nodes, key, home, flow_id, now)
  local refs, rows, ready, roots, carried, model = {}, {}, {}, {}, {}, nil
  for _, node in ipairs(nodes) do
    if L.stage.is_carried(node) then
      L.stage.write_edges(node)
      local staged_id = L.stage.keeps_edges(node) and '' or node.id
      carried[#carried + 1] = node.row ~= '' and node.ref .. '\n' .. staged_id or nil
    elseif node.row == '' then
      L.stage.write_edges(node)
      if #node.after > 0 then redis.call('SREM', key .. ':ready', node.ref) end -- an earlier piece may have added it
    else
      model = L.stage.write_job(node, model, home, flow_id, now)
      if #node.after == 0 then
        add_root(ready, roots, node)
      elseif L.stage.is_root(node.prefix, node.id, node.rule, true) then
        ready[#ready + 1] = node.ref
      end
    end
    if not L.stage.is_carried(node) then
      refs[#refs + 1] = node.ref
    end
    if node.row ~= '' then
      rows[#rows + 1], rows[#rows + 2] = node.name, node.row
    end
  end
  if #carried > 0 then
    redis.call('RPUSH', key .. ':carried', unpack(carried))
  end
  L.stage.add_all(key .. ':open', refs)
  L.stage.add_all(key .. ':ready', ready)
  L.order.push(key .. ':roots', roots)
  for first = 1, #rows, 1000 do
    redis.call('HSET', key .. ':nodes', unpack(rows, first, math.min(first + 999, #rows)))
  end
  L.order.add(key, nodes)
end

-- Writes the record of a new flow and adds it to the index.
local function write_record(keys, header, home, now)
  redis.call('HSET', keys[1], 'id', header.id, 'name', header.name, 'digest', header.digest, 'total', header.total,
    'home', header.home, 'labels', header.labels, 'state', 'staging', 'created_at', now)
  for _, field in ipairs { 'retention', 'deadline', 'fail_fast', 'completed' } do
    if header[field] then
      redis.call('HSET', keys[1], field, L.numbers.text(header[field]))
    end
  end
  if header.request then
    redis.call('HSET', keys[1], 'request', header.request)
  end
  if header.owner then
    redis.call('HSET', keys[1] .. ':owners', header.owner[1], L.numbers.text(header.owner[2]) .. '\n' .. header.owner[3])
  end
  L.index.added(home, header.id, header.labels, now)
end

-- The nodes that are not in the table; or nil and one whose job exists outside the flow.
local function missing_nodes(table_key, nodes)
  local names, fresh = {}, {}
  for i, node in ipairs(nodes) do
    names[i] = node.name
  end
  local known, jobs = #names > 0 and redis.call('HMGET', table_key, unpack(names)) or {}, {}
  for i, node in ipairs(nodes) do
    if not known[i] and not L.stage.is_carried(node) then
      jobs[#jobs + 1] = node.prefix .. 'job:' .. node.id
    end
    if not known[i] or node.row == '' then
      fresh[#fresh + 1] = node
    end
  end
  if L.stage.any_exists(jobs) then
    for i, node in ipairs(nodes) do
      if not known[i] and not L.stage.is_carried(node) and redis.call('EXISTS', node.prefix .. 'job:' .. node.id) == 1 then
        return nil, node
      end
    end
  end
  return fresh
end

local function stage_flow(keys, args)
  local header, now = cjson.decode(args[2]), args[1]
  local refused, is_known = refusal(keys, header)
  if refused then
    return refused
  end
  local fresh, strange = missing_nodes(keys[1] .. ':nodes', L.stage.read_nodes(keys, 2, args, 3))
  if strange then
    return conflict('job ' .. strange.id .. ' of node ' .. strange.name .. ' exists already outside this flow')
  end
  local home = L.record.home(keys[1], header.id)
  if not is_known then
    write_record(keys, header, home, now)
  end
  redis.call('ZADD', home .. 'gmo:staging', now, header.id)
  write_nodes(fresh, keys[1], home, header.id, now)
  return 'staging'
end

redis.register_function('gmo_stage_flow', stage_flow)
