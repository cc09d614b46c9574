-- glidemq_moveToWaitingChildren: park an active job until its children are done.
-- KEYS  1 job hash  2 stream  3 events
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 group  4 now  5 broadcast
-- REPLY ok | completed (all children were done, the job is ready again) | error:not_found | error:not_active
-- EVENT waiting-children | active

local function move_to_waiting_children(keys, args)
  local job_id, entry_id = args[1], args[2] or ''
  local prefix, now = L.hashes.prefix(keys[1], 'job:' .. job_id), L.numbers.int(args[4], 0)
  local job, refusal = L.park.active_job(prefix, job_id)
  if refusal then
    return refusal
  end
  L.stream.ack(prefix .. 'stream', args[3], entry_id, L.numbers.flag(args[5]))
  redis.call('HSET', keys[1], 'state', 'waiting-children')
  L.park.release_list_slot(prefix, entry_id)
  L.park.release_unordered(prefix, job, now)
  local total = redis.call('SCARD', prefix .. 'deps:' .. job_id)
  if total > 0 and L.numbers.int(redis.call('HGET', keys[1], 'depsCompleted'), 0) >= total then
    L.parents.wake(keys[1], keys[2], keys[3], job_id, job.name)
    return 'completed'
  end
  L.events.emit(keys[3], 'waiting-children', job_id)
  return 'ok'
end

redis.register_function({
  function_name = 'glidemq_moveToWaitingChildren', callback = move_to_waiting_children,
  flags = { 'allow-oom' },
})
