-- gmo_run_again: make the job of an ended node of a portable flow wait again, behind a gate.
-- KEYS  1 job hash   2 set of its dependencies (glide-mq's `deps`)   3 completed   4 failed, all of its queue
-- ARGS  1 now_ms   2 job id   3 number of the round of the flow that runs it again   4 member of the gate
-- REPLY 1, or 0 when it is missing or was reset for that round or a later one; then nothing was changed
-- EFFECTS state, result, reason, attempts, signals and marks of the last run are removed; it is in no set of ended jobs
local function run_again(keys, args)
  if redis.call('HEXISTS', keys[1], 'state') == 0 or L.portable.is_later(keys[1], tonumber(args[3]) - 1) then
    return 0
  end
  redis.call('SADD', keys[2], args[4])
  local prefix = keys[1]:sub(1, -#('job:' .. args[2]) - 1)
  L.fresh.reset(prefix, args[2], L.jobs.read(prefix, args[2]), tonumber(args[1]))
  redis.call('HSET', keys[1], 'gmo:round', args[3])
  return 1
end

redis.register_function { function_name = 'gmo_run_again', callback = run_again, flags = { 'allow-oom' } }
