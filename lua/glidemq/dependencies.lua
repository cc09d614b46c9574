-- glidemq_completeChild: notify a parent that a child is done.
-- KEYS  1 parent deps  2 parent hash  3 parent stream  4 parent events
-- ARGS  1 member of the child in the deps set  2 parentId
-- REPLY integer: remaining dependencies (negative when an unknown member was reported)
-- EVENT active of a parent that became ready
--
-- glidemq_registerParent: attach a further parent to an existing job.
-- KEYS  1 child hash  2 parents set of the child  3 parent deps  4 parent hash  5 parent stream
--       6 parent events
-- ARGS  1 childId (unused)  2 parentId  3 parent queue prefix without the last colon  4 member of the child
-- REPLY ok | already_completed | error:child_not_found
-- EVENT active of a parent that became ready

local function complete_child(keys, args)
  local _, left = L.parents.notify({
    parent_id = args[2], member = args[1],
    deps_key = keys[1], job_key = keys[2], stream_key = keys[3], events_key = keys[4],
  })
  return left
end

local function register_parent(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return 'error:child_not_found'
  end
  redis.call('SADD', keys[2], args[3] .. ':' .. args[2])
  redis.call('SADD', keys[3], args[4])
  if redis.call('HGET', keys[1], 'state') ~= 'completed' then
    return 'ok'
  end
  L.parents.notify({
    parent_id = args[2], member = args[4],
    deps_key = keys[3], job_key = keys[4], stream_key = keys[5], events_key = keys[6],
  })
  return 'already_completed'
end

redis.register_function({
  function_name = 'glidemq_completeChild', callback = complete_child, flags = { 'allow-oom' },
})
redis.register_function('glidemq_registerParent', register_parent)
