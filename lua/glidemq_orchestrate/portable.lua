-- Jobs of nodes of the portable path. Each call names the round of the flow that it was decided in, and changes nothing
-- that a later round has let run again (job field gmo:round): a caller that was slow does no harm.
--
-- gmo_end_node: end the job of a node of a portable flow.
-- KEYS  1 job hash
-- ARGS  1 now_ms   2 job id   3 round   4 failed or skipped: one that waits for others; cancelled: whatever has not ended   5 reason
-- REPLY 1, or 0 when it is not like that (any more); then nothing was changed
-- EFFECTS it has ended; a cancelled one is taken out of wherever it could start from, and its lease is gone
-- EVENT failed {failedReason} | completed {returnvalue, skipped} | revoked, then failed
local ENDED = { completed = true, failed = true }

-- Whether a later round runs the job again.
local function is_later(job_key, round)
  return (tonumber(redis.call('HGET', job_key, 'gmo:round') or 0) or 0) > round
end

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

local function cancel(prefix, job_id, job, reason, now)
  local job_key = prefix .. 'job:' .. job_id
  redis.call('HSET', job_key, 'revoked', '1')
  L.events.emit(prefix .. 'events', 'revoked', job_id)
  L.remove.take_out(prefix, job_id, job, redis.call('HGET', job_key, 'gmo:entry') or nil, 0)
  redis.call('ZREM', prefix .. 'gmo:list-held', job_id)
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.groups.leave(prefix, job, now)
  fail(prefix, job_id, reason, now)
end

local function end_node(keys, args)
  local now, job_id, how, reason = tonumber(args[1]), args[2], args[4], args[5]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job or not job.state or ENDED[job.state] or is_later(keys[1], tonumber(args[3])) then
    return 0
  elseif how == 'cancelled' then
    cancel(prefix, job_id, job, reason, now)
  elseif job.state ~= 'waiting-children' then
    return 0
  else
    local act = how == 'skipped' and skip or fail
    act(prefix, job_id, reason, now)
  end
  return 1
end

-- gmo_run_again: let the job of a node of a portable flow that has ended wait again, behind a gate.
-- KEYS  1 job hash   2 set of what it waits for (glide-mq's `deps`)   3 completed   4 failed, all of its queue
-- ARGS  1 now_ms (unused)   2 job id   3 number of the round of the flow that runs it again   4 the gate
-- REPLY 1, or 0 when it waits for that round already, or a later one, or is gone; then nothing was changed
-- EFFECTS the end is taken back: state, result, reason, attempts and marks of the last run; it is in no set of ended jobs
local FRESH = { 'state', 'waiting-children', 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '' }
local STALE = { 'revoked', 'stalledCount', 'progress', 'processedOn', 'gmo:token', 'gmo:entry', 'gmo:skipped', 'returnvalue' }

local function run_again(keys, args)
  if redis.call('HEXISTS', keys[1], 'state') == 0 or is_later(keys[1], tonumber(args[3]) - 1) then
    return 0
  end
  redis.call('SADD', keys[2], args[4])
  redis.call('ZREM', keys[3], args[2])
  redis.call('ZREM', keys[4], args[2])
  redis.call('HDEL', keys[1], unpack(STALE))
  redis.call('HSET', keys[1], 'gmo:round', args[3], unpack(FRESH))
  return 1
end

redis.register_function { function_name = 'gmo_end_node', callback = end_node, flags = { 'allow-oom' } }
redis.register_function { function_name = 'gmo_run_again', callback = run_again, flags = { 'allow-oom' } }
