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
  local due = math.max(L.numbers.int(args[4], now), now)
  local delay = L.numbers.text(due - now)
  L.stream.ack(prefix .. 'stream', args[5], entry_id, L.numbers.flag(args[7]))
  redis.call('ZADD', keys[3], L.numbers.score(L.numbers.int(job.priority, 0), due), job_id)
  if (args[6] or '') ~= '' then
    redis.call('HSET', keys[1], 'data', args[6], 'state', 'delayed', 'delay', delay)
  else
    redis.call('HSET', keys[1], 'state', 'delayed', 'delay', delay)
  end
  L.park.release_list_slot(prefix, entry_id)
  L.park.release_unordered(prefix, job, now)
  L.events.emit(keys[4], 'delay-changed', job_id, 'delay', delay)
  return 'ok'
end

redis.register_function({
  function_name = 'glidemq_moveActiveToDelayed', callback = move_active_to_delayed, flags = { 'allow-oom' },
})
