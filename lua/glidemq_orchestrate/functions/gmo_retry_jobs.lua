-- gmo_retry_jobs: rerun failed jobs, without a delay.
-- KEYS  1 id counter
-- ARGS  1 now_ms   then at most 200 job ids
-- REPLY a word for each job: retried; missing; flow = it is a node of a flow, which is retried as a whole; or the state
--       of a job that has not failed
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS a retried job is ready, regardless of its delay; its attempts, time to live and revocation are reset. A
--       message of a broadcast is retried by the subscriptions in which it has failed.
-- EVENT retried, with the count as job id
local MAX_JOBS = 200

-- Makes one failed job ready and returns the word for it.
local function retry(prefix, job_id, now)
  local key, job = prefix .. 'job:' .. job_id, L.jobs.read(prefix, job_id)
  if not job then
    redis.call('ZREM', prefix .. 'failed', job_id)
    return 'missing'
  elseif job.state ~= 'failed' then
    return job.state or 'missing'
  elseif redis.call('HEXISTS', key, 'gmo:flow') == 1 or L.jobs.is_portable(redis.call('HGET', key, 'opts')) then
    return 'flow'
  elseif L.messages.retry({ prefix = prefix, stream = prefix .. 'stream', now = now }, job_id) then
    return 'retried'
  end
  redis.call('ZREM', prefix .. 'failed', job_id)
  L.keeping.forget(prefix, job_id, 'failed')
  L.start_over.reset(prefix, job_id, job, now, 'waiting')
  redis.call('HDEL', key, 'gmo:token', 'gmo:entry', 'gmo:failure_group', 'gmo:lost', 'gmo:suspect', 'processedOn',
    'lastActive')
  L.children.again(prefix, job_id)
  L.jobs.make_ready(prefix, job_id, job, L.numbers.int(job.priority, 0))
  return 'retried'
end

local function retry_jobs(keys, args)
  local prefix, now = L.hashes.prefix(keys[1], 'id'), tonumber(args[1])
  if not now or #args > 1 + MAX_JOBS then
    return redis.error_reply('GMO_BAD_CALL gmo_retry_jobs: the arguments are not valid')
  end
  local words, count = {}, 0
  for i = 2, #args do
    words[i - 1] = retry(prefix, args[i], now)
    count = count + (words[i - 1] == 'retried' and 1 or 0)
  end
  if count > 0 then
    L.events.emit(prefix .. 'events', 'retried', L.numbers.text(count))
  end
  return words
end

redis.register_function { function_name = 'gmo_retry_jobs', callback = retry_jobs, flags = { 'allow-oom' } }
