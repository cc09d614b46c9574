-- The life of an attempt: activate, finish, fail.

-- glide-mq's retention option as its three arguments: mode, count, age in seconds. Nodes of flows are kept.
local function retention(lease, option)
  if lease.in_flow or not lease.opts:find('"' .. option .. '"', 1, true) then
    return '0', 0, 0
  end
  local ok, opts = pcall(cjson.decode, lease.opts)
  local wanted = ok and type(opts) == 'table' and opts[option]
  if wanted == true then
    return 'true', 0, 0
  elseif type(wanted) == 'number' then
    return 'count', wanted, 0
  elseif type(wanted) == 'table' then
    return 'age_count', tonumber(wanted.count) or 0, tonumber(wanted.age) or 0
  end
  return '0', 0, 0
end

-- The single parent that a Node producer may have given the job.
local function single_parent(lease, job_key)
  local fields = redis.call('HMGET', job_key, 'parentId', 'parentQueue')
  if not fields[1] or not fields[2] or fields[1] == '' or fields[2] == '' then
    return nil
  end
  local start = lease.prefix:match('^(.*):{[^{}]*}:$')
  return { prefix = start .. ':{' .. fields[2] .. '}:', parent_id = fields[1], member = lease.prefix .. lease.job_id }
end

-- Whether a worker holds the entry: one that was taken back has been replaced by another.
local function is_pending(stream, group, entry_id)
  local found = redis.pcall('XPENDING', stream, group, entry_id, entry_id, 1)
  return not found.err and #found == 1
end

-- gmo_activate: begin an attempt.
-- KEYS  1 job hash  2 stream
-- ARGS  1 now_ms  2 job id  3 stream entry id  4 group  5 token
-- REPLY the job's fields as a flat array; or one word why it is not to be run, and then it is taken care of:
--       GONE, NOT_WAITING, HELD, REPLACED, REVOKED, or what glidemq_moveToActive answers (EXPIRED, GROUP_FULL, ...)
-- EFFECTS those of glidemq_moveToActive; token and entry id in the job hash. A repeat with the same token answers the
--   same again. A job that does not wait (ended, or a node whose dependencies are open) is not started: its stray
--   entry is acknowledged; the entry of an attempt that somebody else holds (HELD) stays for gmo_reclaim. An entry
--   that was taken back is not pending any more: its job has a newer entry (REPLACED). If it were started by the
--   old one, the newer one would be thrown away as stray, and nothing would bring the job back if its worker died.
local function not_waiting(keys, args, job)
  if job[1] == 'active' and job[3] == args[3] then
    return job[2] == args[5] and redis.call('HGETALL', keys[1]) or { 'HELD' }
  end
  -- A Node worker notes no entry: the one it works on must not be taken for stray.
  if job[1] == 'active' and not (job[3] and is_pending(keys[2], args[4], job[3])) then
    return { 'HELD' }
  end
  L.stream.ack(keys[2], args[4], args[3], false)
  return { job[1] and 'NOT_WAITING' or 'GONE' }
end

local function activate(keys, args)
  local prefix = keys[1]:sub(1, #keys[1] - #('job:' .. args[2]))
  local now, job_id, entry_id, group = tonumber(args[1]), args[2], args[3], args[4]
  local job = redis.call('HMGET', keys[1], 'state', 'gmo:token', 'gmo:entry')
  if job[1] ~= 'waiting' then
    return not_waiting(keys, args, job)
  end
  if not is_pending(keys[2], group, entry_id) then
    return { 'REPLACED' }
  end
  local why, fields = L.activate.job { prefix = prefix, job_id = job_id, entry_id = entry_id, group = group, now = now }
  if not why then
    redis.call('HSET', keys[1], 'gmo:token', args[5], 'gmo:entry', entry_id)
    return fields
  end
  if why == 'REVOKED' then
    L.finish.fail { prefix = prefix, job_id = job_id, entry_id = entry_id, group = group, reason = 'revoked', now = now,
      max_attempts = 0, backoff = 0, remove_mode = '0', remove_count = 0, remove_age = 0 }
  end
  local after = redis.call('HMGET', keys[1], 'state', 'failedReason')
  if after[1] == 'failed' then
    L.settle.job_failed(prefix, job_id, after[2] or why, now)
  end
  return { why }
end

-- gmo_finish: accept the result of an attempt.
-- KEYS  1 job hash  2 stream   ARGS  1 now_ms, proof, 7 result JSON
-- REPLY id of the flow if it needs gmo_advance_flow, else ''
-- ERROR GMO_STALE
-- EFFECTS those of glidemq_complete; dependents in any queue are released; the flow's counts, and its end.
-- EVENT completed {returnvalue}; active for each released dependent; flow.completed or flow.failed
local function finish(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  local now = tonumber(args[1])
  local mode, count, age = retention(lease, 'removeOnComplete')
  local flow = lease.in_flow and L.record.of_job(lease.prefix, lease.job_id)
  L.finish.complete { prefix = lease.prefix, job_id = lease.job_id, entry_id = lease.entry_id, group = lease.group,
    returnvalue = args[7], now = now, remove_mode = mode, remove_count = count, remove_age = age,
    parent = single_parent(lease, keys[1]), parents_told = flow and true }
  return flow and L.settle.job_completed(flow, lease.prefix, lease.job_id, now) or ''
end

-- gmo_fail: accept the failure of an attempt.
-- KEYS  1 job hash  2 stream   ARGS  1 now_ms, proof, 7 reason  8 attempts allowed  9 backoff_ms
-- REPLY {retrying | failed, id of the flow if it needs gmo_advance_flow, else ''}
-- ERROR GMO_STALE
-- EFFECTS those of glidemq_fail; after the last attempt of a node its dependents fail too, and the flow's counts.
-- EVENT retrying or failed; failed for each dependent; flow.failed
local function fail(keys, args)
  local lease, stale = L.lease.check(keys, args)
  if not lease then
    return stale
  end
  local now, reason = tonumber(args[1]), args[7]
  local mode, count, age = retention(lease, 'removeOnFail')
  local outcome = L.finish.fail { prefix = lease.prefix, job_id = lease.job_id, entry_id = lease.entry_id,
    group = lease.group, reason = reason, now = now, max_attempts = tonumber(args[8]) or 0,
    backoff = tonumber(args[9]) or 0, remove_mode = mode, remove_count = count, remove_age = age }
  if outcome == 'retrying' then
    redis.call('HDEL', keys[1], 'gmo:entry')
  end
  if outcome ~= 'failed' or not lease.in_flow then
    return { outcome, '' }
  end
  return { outcome, L.settle.job_failed(lease.prefix, lease.job_id, reason, now) }
end

redis.register_function { function_name = 'gmo_activate', callback = activate, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_finish', callback = finish, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_fail', callback = fail, flags = { 'allow-oom' } }
