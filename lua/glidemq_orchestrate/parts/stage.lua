-- stage: writes the jobs and table rows of the nodes of a flow, or of an addition to one; none of them runs yet.
L.stage = {}
local NODE_FIELDS = 12

-- Queue and job id of a table row, '' if missing. The pattern saves decoding thousands of dependencies.
function L.stage.place(row)
  local queue, job_id = row:match('^%[[^,]*,"([^"\\]*)","([^"\\]*)"')
  if queue then
    return queue, job_id
  end
  local is_json, parts = pcall(cjson.decode, row)
  parts = is_json and type(parts) == 'table' and parts or {}
  return tostring(parts[2] or ''), tostring(parts[3] or '')
end

local NONE = {} -- nothing changes the lists of a node

-- Reads a list, its length first, from args[at] on; returns it and where the next words are.
local function read_list(args, at)
  local count = args[at]
  if count == '0' then
    return NONE, at + 1
  elseif count == '1' then
    return { args[at + 1] }, at + 2
  end
  local list = {}
  for i = 1, tonumber(count) do
    list[i] = args[at + i]
  end
  return list, at + #list + 1
end

-- Reads the nodes from args[at] on; their queue numbers count from keys[first_queue]. Raises GMO_BAD_CALL for a rule of
-- a newer client, before anything is written.
function L.stage.read_nodes(keys, first_queue, args, at)
  local nodes, prefixes = {}, {}
  while args[at] do
    local prefix = prefixes[args[at]] or keys[first_queue - 1 + tonumber(args[at])]:sub(1, -3)
    prefixes[args[at]] = prefix
    local after, middle = read_list(args, at + NODE_FIELDS)
    local dependents, last = read_list(args, middle)
    local node = { prefix = prefix, id = args[at + 1], name = args[at + 2], job = args[at + 3], data = args[at + 4],
      opts = args[at + 5], attempts = args[at + 6], delay = args[at + 7], row = args[at + 8],
      parent_ids = args[at + 9], parent_queues = args[at + 10], more = args[at + 11], ref = prefix .. args[at + 1],
      after = after, dependents = dependents }
    if node.more ~= '' then
      L.rules.check(node)
      node.ref = L.stage.is_carried(node) and prefix .. node.data or node.ref
    end
    nodes[#nodes + 1], at = node, last
  end
  return nodes
end

-- Whether the node is carried over from the previous generation; see generations.lua.
function L.stage.is_carried(node)
  return node.more == '=' or node.more == '=='
end

-- Whether it keeps its edges too: all its dependents are unchanged and completed.
function L.stage.keeps_edges(node)
  return node.more == '=='
end

-- Adds members to a set, a thousand in a command.
local function add_all(key, members)
  if #members == 1 then
    redis.call('SADD', key, members[1])
    return
  end
  for first = 1, #members, 1000 do
    redis.call('SADD', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

-- Adds the edges of a node or of a piece of one.
function L.stage.write_edges(node)
  if #node.dependents > 0 then
    add_all(node.prefix .. 'parents:' .. node.id, node.dependents)
  end
  if #node.after > 0 then
    add_all(node.prefix .. 'deps:' .. node.id, node.after)
  end
end

-- Writes uncommon fields: rules, policies, priority and so on. Sets node.rule.
local function write_more(job_key, node)
  local fields = {}
  for field, value in pairs(cjson.decode(node.more)) do
    fields[#fields + 1], fields[#fields + 2] = field, value
    if #fields >= 1000 then
      redis.call('HSET', job_key, unpack(fields))
      fields = {}
    end
    if field == 'gmo:rule' then
      node.rule = value
    end
  end
  if #fields > 0 then
    redis.call('HSET', job_key, unpack(fields))
  end
end

-- The length of the longest value in which the hash of a node may differ from that of its model.
local function longest(node)
  return math.max(#node.data, #node.parent_ids, #node.parent_queues, #node.name)
end

-- Writes the hash of a node's job. `model`: a node of the same call, whose hash may be copied, or nil. Returns the node
-- if its hash has no uncommon fields yet, so that it may be the next model, else nil. Extra pairs may follow.
local function write_hash(job_key, node, model, home, flow_id, now, ...)
  local is_alike = model and model.prefix == node.prefix and model.job == node.job and model.opts == node.opts
    and model.delay == node.delay and model.attempts == node.attempts
    and (model.parent_ids == '') == (node.parent_ids == '')
  if is_alike and L.copies.of(model.prefix .. 'job:' .. model.id, job_key, longest(model), longest(node)) then
    if node.parent_ids == '' then
      redis.call('HSET', job_key, 'id', node.id, 'gmo:node', node.name, 'data', node.data)
    else
      redis.call('HSET', job_key, 'id', node.id, 'gmo:node', node.name, 'data', node.data, 'parentIds',
        node.parent_ids, 'parentQueues', node.parent_queues)
    end
  else
    local more = { ... }
    if node.parent_ids ~= '' then
      more[#more + 1], more[#more + 2] = 'parentIds', node.parent_ids
      more[#more + 1], more[#more + 2] = 'parentQueues', node.parent_queues
    end
    redis.call('HSET', job_key, 'id', node.id, 'name', node.job, 'data', node.data, 'opts', node.opts,
      'timestamp', now, 'attemptsMade', '0', 'delay', node.delay, 'priority', '0', 'maxAttempts', node.attempts,
      'state', 'waiting-children', 'gmo:flow', flow_id, 'gmo:home', home, 'gmo:node', node.name, unpack(more))
  end
  return node.more == '' and node or nil
end

-- Writes the job of a node with its edges, but not the tables. `model`: see `write_hash`, also for what it returns.
-- Extra pairs for the hash may follow; a node and its model have the same.
function L.stage.write_job(node, model, home, flow_id, now, ...)
  local job_key = node.prefix .. 'job:' .. node.id
  local next_model = write_hash(job_key, node, model, home, flow_id, now, ...) or model
  if node.opts ~= '{}' then
    L.tags.adopt(node.prefix, node.id, node.opts, now)
  end
  L.stage.write_edges(node)
  if node.more ~= '' then
    write_more(job_key, node)
  end
  L.events.emit(node.prefix .. 'events', 'added', node.id, 'name', node.job)
  return next_model
end

-- Whether any of the keys exists.
function L.stage.any_exists(keys)
  for first = 1, #keys, 1000 do
    if redis.call('EXISTS', unpack(keys, first, math.min(first + 999, #keys))) > 0 then
      return true
    end
  end
  return false
end

-- Whether a node with complete edges may run immediately; if not, a node with a rule is guarded from now on.
-- `has_deps`: it is known to have dependencies.
function L.stage.is_root(prefix, job_id, rule, has_deps)
  if not has_deps and redis.call('EXISTS', prefix .. 'deps:' .. job_id) == 0 then
    return true
  end
  if rule then
    L.rules.guard(prefix, job_id)
  end
  return rule == 'always'
end

L.stage.add_all = add_all
