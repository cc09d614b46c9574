-- gmo_progress: store the progress of a job and emit an event.
-- KEYS  1 job hash          ARGS  1 now_ms, proof, 7 progress JSON
-- REPLY integer: 1          ERROR GMO_STALE
-- EVENT progress {data}
local function progress(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  redis.call('HSET', keys[1], 'progress', args[7], 'lastActive', args[1])
  L.events.emit(lease.prefix .. 'events', 'progress', lease.job_id, 'data', args[7])
  return 1
end

redis.register_function { function_name = 'gmo_progress', callback = progress, flags = { 'allow-oom' } }
