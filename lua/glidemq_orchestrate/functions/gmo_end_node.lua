-- gmo_end_node: end the job of a node of a portable flow.
-- KEYS  1 job hash
-- ARGS  1 now_ms   2 job id   3 round   4 failed, skipped or completed: for a job that waits for others; unstarted: for
--       one that no worker has begun; cancelled: for any job that has not ended   5 reason, or result
-- REPLY 1, or 0 when the job is in another state or a later round; then nothing was changed
-- EFFECTS the job has ended; a cancelled one is removed from every place where it could start, and has lost its lease
-- EVENT failed {failedReason} | completed {returnvalue, skipped} | revoked, then failed
local ENDED = { completed = true, failed = true }

local function fail(prefix, job_id, reason, now)
  L.jobs.set_failed(prefix, job_id, reason, now)
  L.events.emit(prefix .. 'events', 'failed', job_id, 'failedReason', reason)
end

local function skip(prefix, job_id, reason, now)
  redis.call('ZADD', prefix .. 'completed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'completed', 'returnvalue', 'null', 'gmo:skipped', reason,
    'finishedOn', L.numbers.text(now))
  L.events.emit(prefix .. 'events', 'completed', job_id, 'returnvalue', 'null', 'skipped', reason)
end

local function complete(prefix, job_id, result, now)
  redis.call('ZADD', prefix .. 'completed', now, job_id)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'state', 'completed', 'returnvalue', result, 'finishedOn',
    L.numbers.text(now))
  L.events.emit(prefix .. 'events', 'completed', job_id, 'returnvalue', result)
end

local ENDS = { failed = fail, skipped = skip, completed = complete }

local function cancel(prefix, job_id, job, reason, now)
  redis.call('HSET', prefix .. 'job:' .. job_id, 'revoked', '1')
  L.events.emit(prefix .. 'events', 'revoked', job_id)
  L.portable.withdraw(prefix, job_id, job, 0, now)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  fail(prefix, job_id, reason, now)
end

local function end_node(keys, args)
  local now, job_id, how, reason = tonumber(args[1]), args[2], args[4], args[5]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job or not job.state or ENDED[job.state] or L.portable.is_later(keys[1], tonumber(args[3])) then
    return 0
  elseif how == 'unstarted' and not L.portable.is_unstarted(keys[1], job) then
    return 0
  elseif how == 'cancelled' or how == 'unstarted' then
    cancel(prefix, job_id, job, reason, now)
  elseif job.state ~= 'waiting-children' then
    return 0
  else
    ENDS[how](prefix, job_id, reason, now)
  end
  redis.call('HDEL', keys[1], 'gmo:withdrawn')
  return 1
end

redis.register_function { function_name = 'gmo_end_node', callback = end_node, flags = { 'allow-oom' } }
