-- glidemq_suspend: park an active job until a signal.
-- KEYS  1 job hash  2 stream  3 events  4 suspended
-- ARGS  1 jobId  2 entryId ('' = from a list)  3 group  4 now  5 reason  6 timeout ms (0 = none)  7 broadcast
-- REPLY ok | error:not_found | error:not_active
-- EVENT suspended
--
-- glidemq_signal: deliver a signal and make the job ready.
-- KEYS  1 job hash  2 stream  3 events  4 suspended  5 signals list of the job
-- ARGS  1 jobId  2 name  3 data  4 now
-- REPLY ok | not_suspended
-- EVENT resumed {signal}
--
-- glidemq_sweepSuspended: fail suspended jobs past their deadline, 100 per call.
-- KEYS  1 suspended  2 events  3 failed  4 failed metrics
-- ARGS  1 now  2 queue prefix with its colon
-- REPLY integer: jobs failed
-- EVENT failed {failedReason}

local BATCH = 100

local function suspend(keys, args)
  local job_id, entry_id = args[1], args[2] or ''
  local prefix, now = L.hashes.prefix(keys[1], 'job:' .. job_id), L.numbers.int(args[4], 0)
  local job, refusal = L.park.active_job(prefix, job_id)
  if refusal then
    return refusal
  end
  L.park.suspend({
    prefix = prefix, job_id = job_id, entry_id = entry_id, group = args[3], now = now, reason = args[5] or '',
    timeout = L.numbers.int(args[6], 0), broadcast = L.numbers.flag(args[7]), events_key = keys[3],
    suspended_key = keys[4],
  }, job)
  return 'ok'
end

local function signal(keys, args)
  local found = redis.call('HMGET', keys[1], 'state', 'name')
  if found[1] ~= 'suspended' then
    return 'not_suspended'
  end
  local entry = { name = args[2], data = args[3] or '', receivedAt = L.numbers.int(args[4], 0) }
  redis.call('RPUSH', keys[5], cjson.encode(entry))
  local signals = '[' .. table.concat(redis.call('LRANGE', keys[5], 0, -1), ',') .. ']'
  redis.call('HSET', keys[1], 'signals', signals, 'state', 'waiting')
  redis.call('ZREM', keys[4], args[1])
  L.stream.append(keys[2], args[1], found[2])
  L.events.emit(keys[3], 'resumed', args[1], 'signal', args[2])
  return 'ok'
end

local function sweep_suspended(keys, args)
  local prefix = args[2] or ''
  if prefix == '' then
    prefix = L.hashes.prefix(keys[1], 'suspended')
  end
  local p = { prefix = prefix, now = L.numbers.int(args[1], 0), suspended_key = keys[1], events_key = keys[2],
    metrics_key = keys[4] }
  return L.park.expire(p, BATCH)
end

redis.register_function({ function_name = 'glidemq_suspend', callback = suspend, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'glidemq_signal', callback = signal, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'glidemq_sweepSuspended', callback = sweep_suspended, flags = { 'allow-oom' },
})
