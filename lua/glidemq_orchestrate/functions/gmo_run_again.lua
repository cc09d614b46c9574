-- gmo_run_again: make the job of a node of a portable flow wait again, behind a gate.
-- KEYS  1 job hash   2 set of its dependencies (glide-mq's `deps`)   3 completed   4 failed, all of its queue
-- ARGS  1 now_ms   2 job id   3 number of the round of the flow that reruns it   4 member of the gate   5 1: only if it
--       has not ended; 2: only if it waits for a worker or was only prefetched   6 token of the request, or ''
-- REPLY 1 when it waits, or was already reset for that round or a later one and was not changed now; 0 when it is
--       missing or has ended contrary to argument 5
-- EFFECTS state, result, reason, attempts, signals and marks of the last run are removed; it is in no set of ended jobs
--       and in no place where it could start. A worker that runs it has lost its lease.
local ENDED, SEARCHED = { completed = true, failed = true }, 1000

-- Takes an open job from the workers. The late end by a Node worker, which has no token, must be detected
-- (gmo:withdrawn).
local function take_back(prefix, job_id, job, now)
  local job_key = prefix .. 'job:' .. job_id
  if job.state == 'active' and redis.call('HEXISTS', job_key, 'gmo:token') == 0 then
    redis.call('HSET', job_key, 'gmo:withdrawn', '1')
  end
  L.portable.withdraw(prefix, job_id, job, SEARCHED, now)
end

local function run_again(keys, args)
  local now, job_id, request = tonumber(args[1]), args[2], args[6] or ''
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  L.jobs.restore(prefix, job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job or not job.state then
    return 0
  elseif L.portable.is_later(keys[1], tonumber(args[3]) - 1) then
    return 1
  elseif args[5] == '2' and not L.losses.is_idle(keys[1], job.state) then
    return 0
  elseif not ENDED[job.state] then
    take_back(prefix, job_id, job, now)
  elseif args[5] == '1' then
    return 0
  end
  redis.call('SADD', keys[2], args[4])
  L.fresh.reset(prefix, job_id, job, now)
  redis.call('HSET', keys[1], 'gmo:round', args[3])
  if request ~= '' then
    L.rerun.remember(keys[1], request)
  end
  return 1
end

redis.register_function { function_name = 'gmo_run_again', callback = run_again, flags = { 'allow-oom' } }
