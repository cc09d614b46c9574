-- members: the kinds of members of a job's `deps` set: a gate, a node that it depends on, or a child, which is a job
-- that it added while it ran. keys.py has the same rule for ids.
L.members = {}

-- Whether an id seems to be that of a node in the same flow: a child may be named in the same way.
function L.members.is_node_id(own_id, job_id)
  if job_id:find('^gmo%-%x+$') then
    return true
  end
  local flow = own_id:match('^(.*~)')
  if flow then
    return job_id:sub(1, #flow) == flow
  end
  return job_id:find('~', 1, true) ~= nil
end

-- Whether a member is a child of the job `own_id`; the state of its job, false without one; and whether it is in
-- another slot. For a removed job or one in another slot, the id decides.
function L.members.look(own_id, member)
  local queue, job_id = L.record.split(member)
  if not queue or job_id:find('^gmo%-gate%-') then
    return false, false, false
  end
  local v = redis.pcall('HMGET', queue .. 'job:' .. job_id, 'state', 'gmo:flow', 'opts')
  if v.err then
    return not L.members.is_node_id(own_id, job_id), false, true
  elseif v[2] or L.jobs.is_portable(v[3]) then
    return false, v[1], false
  end
  return v[1] and true or not L.members.is_node_id(own_id, job_id), v[1], false
end
