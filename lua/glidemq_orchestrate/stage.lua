-- gmo_stage_flow: write a chunk of the nodes of a flow. Nothing runs before gmo_start_flow.
-- KEYS  1 home key of the flow id   2 flow hash   3.. id key of each queue of the flow
-- ARGS  1 now_ms   2 header JSON {id, name, digest, total, home, labels}   then for each node:
--       queue number, job id, node name, job name, data, opts, max attempts, delay_ms, table JSON,
--       dependents' ids JSON, dependents' queues JSON, n, n dependency refs, m, m dependent refs
-- REPLY state of the flow: staging; or what it is already, and then nothing was changed
-- ERROR GMO_FLOW_CONFLICT: another flow has the id, or a job of a node exists outside this flow. Nothing was changed.
-- EFFECTS first chunk: home key, record. Each node once: job hash (waiting-children), deps and parents sets, table,
--   open set, ready set (without dependencies). Repeatable: nodes that are there already are passed over.
-- EVENT added {name} for each new node, in its queue

local NODE_FIELDS = 11

local function conflict(told)
  return redis.error_reply('GMO_FLOW_CONFLICT ' .. told)
end

-- Reads the variable part of the arguments into a list of nodes.
local function read_nodes(keys, args)
  local nodes, at = {}, 3
  while args[at] do
    local prefix = keys[2 + tonumber(args[at])]:sub(1, -3)
    local node = { prefix = prefix, id = args[at + 1], name = args[at + 2], job = args[at + 3], data = args[at + 4],
      opts = args[at + 5], attempts = args[at + 6], delay = args[at + 7], row = args[at + 8],
      parent_ids = args[at + 9], parent_queues = args[at + 10], after = {}, dependents = {} }
    at = at + NODE_FIELDS
    for _, list in ipairs({ node.after, node.dependents }) do
      local count = tonumber(args[at])
      for i = 1, count do
        list[i] = args[at + i]
      end
      at = at + count + 1
    end
    nodes[#nodes + 1] = node
  end
  return nodes
end

-- Says why the flow cannot be staged here: an error, or the state of an equal flow that is past staging.
local function refusal(keys, header)
  local home = redis.call('GET', keys[1])
  local found = redis.call('HMGET', keys[2], 'digest', 'state')
  if home and (home ~= header.home or not found[1] or found[1] ~= header.digest) then
    return conflict('flow id ' .. header.id .. ' belongs to another flow')
  end
  if found[2] and found[2] ~= 'staging' then
    return found[2]
  end
end

local function add_all(key, members)
  for first = 1, #members, 1000 do
    redis.call('SADD', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

local function write_node(node, key, header, now)
  local ref, job_key = node.prefix .. node.id, node.prefix .. 'job:' .. node.id
  local home = L.record.home(key, header.id)
  redis.call('HSET', job_key, 'id', node.id, 'name', node.job, 'data', node.data, 'opts', node.opts,
    'timestamp', now, 'attemptsMade', '0', 'delay', node.delay, 'priority', '0', 'maxAttempts', node.attempts,
    'state', 'waiting-children', 'gmo:flow', header.id, 'gmo:home', home, 'gmo:node', node.name)
  if #node.dependents > 0 then
    redis.call('HSET', job_key, 'parentIds', node.parent_ids, 'parentQueues', node.parent_queues)
    add_all(node.prefix .. 'parents:' .. node.id, node.dependents)
  end
  if #node.after > 0 then
    add_all(node.prefix .. 'deps:' .. node.id, node.after)
  else
    redis.call('SADD', key .. ':ready', ref)
  end
  redis.call('SADD', key .. ':open', ref)
  redis.call('HSET', key .. ':nodes', node.name, node.row)
  L.events.emit(node.prefix .. 'events', 'added', node.id, 'name', node.job)
end

local function stage_flow(keys, args)
  local header = cjson.decode(args[2])
  local refused = refusal(keys, header)
  if refused then
    return refused
  end
  local fresh = {}
  for _, node in ipairs(read_nodes(keys, args)) do
    if redis.call('HEXISTS', keys[2] .. ':nodes', node.name) == 0 then
      if redis.call('EXISTS', node.prefix .. 'job:' .. node.id) == 1 then
        return conflict('job ' .. node.id .. ' of node ' .. node.name .. ' exists already outside this flow')
      end
      fresh[#fresh + 1] = node
    end
  end
  redis.call('SET', keys[1], header.home)
  redis.call('HSET', keys[2], 'id', header.id, 'name', header.name, 'digest', header.digest, 'total', header.total,
    'home', header.home, 'labels', header.labels, 'state', 'staging', 'created_at', args[1])
  for _, node in ipairs(fresh) do
    write_node(node, keys[2], header, args[1])
  end
  return 'staging'
end

redis.register_function('gmo_stage_flow', stage_flow)
