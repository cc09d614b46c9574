-- gmo_node_inputs: return a page of the results of a job's dependencies.
-- KEYS  1 job hash           ARGS  1 now_ms (unused)  2 job id  3 cursor ('0' first)  4 page size
-- REPLY {next cursor ('0' = end), flat array of node name (job id outside flows), stored result, refs of the removed
--       results}; only completed dependencies that were not skipped, possibly with duplicates

local function node_inputs(keys, args)
  local prefix, inputs, removed = keys[1]:sub(1, #keys[1] - #('job:' .. args[2])), {}, {}
  local own = redis.call('HMGET', keys[1], 'gmo:home', 'gmo:flow')
  local flow = own[1] and own[2] and L.record.key(own[1], own[2])
  local page = redis.call('SSCAN', prefix .. 'deps:' .. args[2], L.read.resume(args[3]), 'COUNT', args[4])
  for _, ref in ipairs(page[2]) do
    local queue, job_id = L.record.split(ref)
    local job = queue and L.read.fields_of(queue .. 'job:' .. job_id, 'gmo:node', 'state', 'returnvalue', 'gmo:skipped',
      'gmo:removed') or { false, 'none' }
    -- children_values reports the ends of children
    local is_child = flow and not job[5] and queue and not L.members.is_node_id(args[2], job_id)
    if not job[2] and not is_child and not (job[5] or ''):find('^[^c]') then
      removed[#removed + 1] = (not flow or L.read.end_of_removed(flow, ref) == 'completed') and ref or nil
    elseif job[2] == 'completed' and not job[4] then
      inputs[#inputs + 1] = job[1] or job_id
      inputs[#inputs + 1] = job[3] or 'null'
    end
  end
  return { L.read.following(page[1]), inputs, removed }
end

redis.register_function { function_name = 'gmo_node_inputs', callback = node_inputs, flags = { 'no-writes' } }
