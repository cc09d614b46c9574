-- Reading flows. These functions write nothing.

-- gmo_flow_status: the record of a flow, in constant time.
-- KEYS  1 flow hash          ARGS  1 now_ms (unused)  2 flow id
-- REPLY flat array of the record's fields      ERROR GMO_FLOW_NOT_FOUND
local function flow_status(keys, args)
  local fields = redis.call('HGETALL', keys[1])
  if #fields == 0 then
    return L.record.not_found(args[2])
  end
  return fields
end

-- Cursors of SCAN mean something to one server process only: those that are given out say which, and a page that
-- another one is asked for is the first again. Whoever reads may get things twice, and misses none.
local function process()
  return redis.call('INFO', 'server'):match('run_id:(%x+)') or ''
end

local function resume(cursor)
  local at, origin = cursor:match('^(%d+)@(%x*)$')
  if not at then
    return cursor
  end
  return origin == process() and at or '0'
end

local function following(cursor)
  return cursor == '0' and '0' or cursor .. '@' .. process()
end

-- Whether a node still has what the generation before left in it: its turn to run again has not come.
local function leftovers(key)
  local marks = redis.call('HMGET', key, 'restart', 'retry')
  return function(ref)
    if marks[1] then
      return redis.call('SISMEMBER', key .. ':open', ref) == 0
    end
    return marks[2] and redis.call('SISMEMBER', key .. ':failed', ref) == 1
  end
end

-- Calls visit(name, table row, job key, is it about to run again) for a page of nodes; returns the next cursor, '0' at
-- the end.
local function each_node(keys, args, visit)
  local start, is_left = keys[1]:match('^(.*:){[^{}]*}:gmo:flow:'), leftovers(keys[1])
  local page = redis.call('HSCAN', keys[1] .. ':nodes', resume(args[3]), 'COUNT', args[4])
  for i = 1, #page[2], 2 do
    local queue, job_id = L.stage.place(page[2][i + 1])
    local prefix = queue ~= '' and start .. '{' .. queue .. '}:'
    visit(page[2][i], page[2][i + 1], prefix and prefix .. 'job:' .. job_id, prefix and is_left(prefix .. job_id))
  end
  return following(page[1])
end

-- Fields of a job; of one that cannot be read, or that no row leads to, a state that no job has.
local function fields_of(job_key, ...)
  local fields = job_key and redis.pcall('HMGET', job_key, ...) or { err = 'no row' }
  return fields.err and { 'unreadable' } or fields
end

-- gmo_flow_nodes: a page of nodes.
-- KEYS  1 flow hash          ARGS  1 now_ms (unused)  2 flow id  3 cursor ('0' first)  4 page size
-- REPLY {next cursor ('0' = done), then per node: name, table JSON, state (or skipped), attempts, started, finished,
--       reason, progress}
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED (only its tombstone is left)
local function flow_nodes(keys, args)
  local gone = L.retain.refusal(keys[1], args[2])
  if gone then
    return gone
  end
  local reply = { '0' }
  reply[1] = each_node(keys, args, function(name, row, job_key, is_left)
    local job = is_left and { 'waiting-children', '0' } or fields_of(job_key, 'state', 'attemptsMade', 'processedOn',
      'finishedOn', 'failedReason', 'progress', 'gmo:skipped')
    if job[7] then
      job[1], job[5] = 'skipped', job[7]
    end
    reply[#reply + 1] = name
    reply[#reply + 1] = row
    for i = 1, 6 do
      reply[#reply + 1] = job[i] or ''
    end
  end)
  return reply
end

-- gmo_flow_results: a page of the results of completed nodes.
-- KEYS and ARGS as gmo_flow_nodes
-- REPLY {next cursor, flat array of node name, stored result}      ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED
local function flow_results(keys, args)
  local gone = L.retain.refusal(keys[1], args[2])
  if gone then
    return gone
  end
  local results = {}
  local cursor = each_node(keys, args, function(name, _, job_key, is_left)
    local job = fields_of(job_key, 'state', 'returnvalue', 'gmo:skipped')
    if job[1] == 'completed' and not job[3] and not is_left then
      results[#results + 1] = name
      results[#results + 1] = job[2] or 'null'
    end
  end)
  return { cursor, results }
end

-- gmo_node_inputs: a page of what the dependencies of a job returned.
-- KEYS  1 job hash           ARGS  1 now_ms (unused)  2 job id  3 cursor ('0' first)  4 page size
-- REPLY {next cursor ('0' = done), flat array of node name (job id outside flows), stored result}; only completed
--       dependencies that were not skipped, and one may come twice
local function node_inputs(keys, args)
  local prefix, inputs = keys[1]:sub(1, #keys[1] - #('job:' .. args[2])), {}
  local page = redis.call('SSCAN', prefix .. 'deps:' .. args[2], resume(args[3]), 'COUNT', args[4])
  for _, ref in ipairs(page[2]) do
    local queue, job_id = L.record.split(ref)
    local job = queue and fields_of(queue .. 'job:' .. job_id, 'gmo:node', 'state', 'returnvalue', 'gmo:skipped') or {}
    if job[2] == 'completed' and not job[4] then
      inputs[#inputs + 1] = job[1] or job_id
      inputs[#inputs + 1] = job[3] or 'null'
    end
  end
  return { following(page[1]), inputs }
end

redis.register_function { function_name = 'gmo_flow_status', callback = flow_status, flags = { 'no-writes' } }
redis.register_function { function_name = 'gmo_flow_nodes', callback = flow_nodes, flags = { 'no-writes' } }
redis.register_function { function_name = 'gmo_flow_results', callback = flow_results, flags = { 'no-writes' } }
redis.register_function { function_name = 'gmo_node_inputs', callback = node_inputs, flags = { 'no-writes' } }
