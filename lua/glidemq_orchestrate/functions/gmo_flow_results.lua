-- gmo_flow_results: return a page of the results of completed nodes.
-- KEYS and ARGS as for gmo_flow_nodes
-- REPLY {next cursor, flat array of node name, stored result, names of completed nodes whose results were removed}
-- ERROR GMO_FLOW_NOT_FOUND, GMO_FLOW_EXPIRED
local function flow_results(keys, args)
  local expired = L.retain.refusal(keys[1], args[2])
  if expired then
    return expired
  end
  local results, removed = {}, {}
  local cursor = L.read.each_node(keys, args, function(name, _, job_key, is_left, ref)
    local job = L.read.fields_of(job_key, 'state', 'returnvalue', 'gmo:skipped', 'gmo:removed')
    if not job[1] and not is_left and not (job[4] or ''):find('^[^c]') then
      removed[#removed + 1] = L.read.end_of_removed(keys[1], ref) == 'completed' and name or nil
    elseif job[1] == 'completed' and not job[3] and not is_left then
      results[#results + 1] = name
      results[#results + 1] = job[2] or 'null'
    end
  end)
  return { cursor, results, removed }
end

redis.register_function { function_name = 'gmo_flow_results', callback = flow_results, flags = { 'no-writes' } }
