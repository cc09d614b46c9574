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
  local is_ready = L.park.await_children({
    prefix = prefix, job_id = job_id, entry_id = entry_id, group = args[3], now = now,
    broadcast = L.numbers.flag(args[5]), stream_key = keys[2], events_key = keys[3],
  }, job)
  return is_ready and 'completed' or 'ok'
end

redis.register_function({
  function_name = 'glidemq_moveToWaitingChildren', callback = move_to_waiting_children,
  flags = { 'allow-oom' },
})
