-- gmo_run_again: make the job of an ended node of a portable flow wait again, behind a gate.
-- KEYS  1 job hash   2 set of its dependencies (glide-mq's `deps`)   3 completed   4 failed, all of its queue
-- ARGS  1 now_ms (unused)   2 job id   3 number of the round of the flow that runs it again   4 member of the gate
-- REPLY 1, or 0 when it is missing or was reset for that round or a later one; then nothing was changed
-- EFFECTS state, result, reason, attempts and marks of the last run are removed; it is in no set of ended jobs
local FRESH = { 'state', 'waiting-children', 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '' }

local STALE = { 'revoked', 'stalledCount', 'progress', 'processedOn', 'gmo:token', 'gmo:entry', 'gmo:skipped', 'gmo:begun',
  'returnvalue' }

local function run_again(keys, args)
  if redis.call('HEXISTS', keys[1], 'state') == 0 or L.portable.is_later(keys[1], tonumber(args[3]) - 1) then
    return 0
  end
  redis.call('SADD', keys[2], args[4])
  redis.call('ZREM', keys[3], args[2])
  redis.call('ZREM', keys[4], args[2])
  redis.call('HDEL', keys[1], unpack(STALE))
  redis.call('HSET', keys[1], 'gmo:round', args[3], unpack(FRESH))
  return 1
end

redis.register_function { function_name = 'gmo_run_again', callback = run_again, flags = { 'allow-oom' } }
