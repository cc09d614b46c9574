-- glidemq_moveActiveToDelayed: postpone an active job.
-- KEYS  1 job hash  2 stream  3 scheduled  4 events
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 now  4 until (ms since the epoch)  5 group
--       6 new data ('' = keep)  7 broadcast
-- REPLY ok | error:not_found | error:not_active
-- EVENT delay-changed {delay}

local function move_active_to_delayed(keys, args)
  local job_id, entry_id = args[1], args[2] or ''
  local prefix, now = L.hashes.prefix(keys[1], 'job:' .. job_id), L.numbers.int(args[3], 0)
  local job, refusal = L.park.active_job(prefix, job_id)
  if refusal then
    return refusal
  end
  L.park.postpone({
    prefix = prefix, job_id = job_id, entry_id = entry_id, group = args[5], now = now,
    due = math.max(L.numbers.int(args[4], now), now), data = args[6] or '', broadcast = L.numbers.flag(args[7]),
    scheduled_key = keys[3], events_key = keys[4],
  }, job)
  return 'ok'
end

redis.register_function({
  function_name = 'glidemq_moveActiveToDelayed', callback = move_active_to_delayed, flags = { 'allow-oom' },
})
