-- glidemq_addJob: create and enqueue one job.
-- KEYS  1 id counter  2 stream  3 scheduled  4 events  5 deps set of the parent (optional)
-- ARGS  1 name  2 data  3 opts  4 now  5 delay  6 priority  7 parentId  8 maxAttempts  9 orderingKey
--       10 groupConcurrency  11 groupRateMax  12 groupRateDuration  13 tbCapacity  14 tbRefillRate  15 cost
--       16 ttl  17 customJobId  18 lifo  19 parentQueue  20 schedulerName  21 skipEvents
-- REPLY job id | duplicate | ERR:COST_EXCEEDS_CAPACITY
-- ERROR unexpected key format
-- EVENT added {name}

local M = {}
L.add = M

-- Arguments 1 to 17 of addJob, also used by dedup, from position `first` on.
function M.parse(prefix, args, first)
  local int = L.numbers.int
  return {
    prefix = prefix, name = args[first], data = args[first + 1], opts = args[first + 2],
    timestamp = int(args[first + 3], nil), delay = int(args[first + 4], 0),
    priority = int(args[first + 5], 0), parent_id = args[first + 6] or '',
    max_attempts = int(args[first + 7], 0), ordering_key = args[first + 8] or '',
    concurrency = int(args[first + 9], 0), rate_max = int(args[first + 10], 0),
    rate_duration = int(args[first + 11], 0), tb_capacity = int(args[first + 12], 0),
    tb_refill_rate = int(args[first + 13], 0), cost = int(args[first + 14], 0),
    ttl = int(args[first + 15], 0), custom_id = args[first + 16] or '',
    lifo = int(args[first + 17], 0) > 0, parent_queue = args[first + 18] or '',
  }
end

-- Creates the job. Returns its id and nil, or nil and the reply with the reason.
function M.create(job, deps_key)
  local prefix = job.prefix
  job.id = L.ids.allocate(prefix, job.custom_id)
  if not job.id then
    return nil, 'duplicate'
  end
  if job.ordering_key ~= '' then
    job.group_key = job.ordering_key
    job.ordering_seq = L.group_setup.join(prefix, job.group_key, job, job.timestamp)
    if not job.ordering_seq then
      return nil, 'ERR:COST_EXCEEDS_CAPACITY'
    end
  end
  if job.ttl > 0 then
    job.expire_at = job.timestamp + job.ttl
  end
  L.jobs.write(job)
  if deps_key and job.parent_id ~= '' and job.parent_queue ~= '' then
    redis.call('SADD', deps_key, string.sub(prefix, 1, -2) .. ':' .. job.id)
  end
  L.jobs.route(job)
  return job.id, nil
end

function M.announce(job, skip_events)
  if not L.numbers.flag(skip_events) then
    L.events.emit(job.prefix .. 'events', 'added', job.id, 'name', job.name)
  end
end

local function add_job(keys, args)
  if string.sub(keys[1] or '', -3) ~= ':id' then
    return redis.error_reply('ERR glidemq_addJob: unexpected key format: ' .. tostring(keys[1]))
  end
  local job = M.parse(L.hashes.prefix(keys[1], 'id'), args, 1)
  if not job.timestamp then
    return redis.error_reply('ERR glidemq_addJob: the timestamp is not a number')
  end
  job.scheduler_name = args[20]
  local job_id, refusal = M.create(job, keys[5])
  if refusal then
    return refusal
  end
  M.announce(job, args[21])
  return job_id
end

redis.register_function('glidemq_addJob', add_job)
