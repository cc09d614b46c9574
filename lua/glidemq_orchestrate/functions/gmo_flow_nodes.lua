-- gmo_flow_nodes: return a page of the nodes of a flow.
-- KEYS  1 flow hash
-- ARGS  1 now_ms (unused)  2 flow id  3 cursor ('0' first)  4 page size  5 'state'  6.. more fields of the job
-- REPLY {next cursor ('0' = end), then per node: name, table JSON, the fields in the order of ARGS ('' = absent)};
--       the state is removed-completed or removed-failed if the job of an ended node was removed
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED (only its tombstone remains)
local function flow_nodes(keys, args)
  local expired = L.retain.refusal(keys[1], args[2])
  if expired then
    return expired
  end
  local reply = { '0' }
  reply[1] = L.read.each_node(keys, args, function(name, row, job_key, is_left, ref)
    local job = is_left and { 'waiting-children' } or L.read.fields_of(job_key, unpack(args, 5))
    if not job[1] and ref then
      local ended = L.read.end_of_removed(keys[1], ref)
      job[1] = ended and 'removed-' .. ended or ''
    end
    reply[#reply + 1] = name
    reply[#reply + 1] = row
    for i = 1, #args - 4 do
      reply[#reply + 1] = job[i] or ''
    end
  end)
  return reply
end

redis.register_function { function_name = 'gmo_flow_nodes', callback = flow_nodes, flags = { 'no-writes' } }
