-- Active jobs that came from the priority or LIFO list: they are in no stream and no key lists them (a list of ours
-- would miss jobs that a Node worker activates), so a scan of the whole keyspace finds them.
-- COST  grows with all keys of the server; the scan ends after 500,000 keys (50,000 for healListActive). Only
--       getActiveListJobIds scans while list-active is 0.
--
-- glidemq_reclaimStalledListJobs: recover those with a silent worker.
-- KEYS  1 stream  2 events
-- ARGS  1 minIdle ms  2 maxStalledCount  3 now  4 failed set key  5 lock duration of the worker in ms
-- REPLY integer: jobs handled
-- EVENT stalled | failed {failedReason} | expired
--
-- glidemq_healListActive: lower the list-active counter to the real number of active jobs.
-- KEYS  1 id counter          REPLY integer: counter minus jobs counted
--
-- glidemq_getActiveListJobIds: their ids.
-- KEYS  1 id counter          ARGS  1 start  2 end (inclusive; negative = to the end)
-- REPLY array of ids, in no order

-- Calls `visit(job_id, job)` for every active list-sourced job; false when the scan had to stop early.
-- Keys below a job (`job:<id>:sub:...`, locks) are not jobs, and ids contain no colon.
local function each_active(prefix, page, max_pages, visit)
  local head, cursor, seen = prefix .. 'job:', '0', {}
  local pattern = string.gsub(head, '[%*%?%[%]%^\\]', '\\%0') .. '*'
  for _ = 1, max_pages do
    local reply = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', page, 'TYPE', 'hash')
    for _, key in ipairs(reply[2]) do
      local job_id = string.sub(key, #head + 1)
      if not string.find(job_id, ':', 1, true) and redis.call('HGET', key, 'state') == 'active' then
        local job = not seen[job_id] and L.jobs.read(prefix, job_id)
        if job and L.list_active.is_source(job) then
          seen[job_id] = true
          visit(job_id, job)
        end
      end
    end
    cursor = reply[1]
    if cursor == '0' then
      return true
    end
  end
  return false
end

local function requeue(r, job_id, job)
  local key = r.prefix .. 'job:' .. job_id
  redis.call('HSET', key, 'state', 'waiting')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  L.jobs.make_ready(r.prefix, job_id, job, L.numbers.int(job.priority, 0))
end

-- `lastActive` first: a sweeper that runs right afterwards must not count the same stall again.
local function recover(r, job_id, job)
  redis.call('HSET', r.prefix .. 'job:' .. job_id, 'lastActive', L.numbers.text(r.now))
  if not L.expiry.check(r.prefix, job_id, r.now, job) then
    local outcome = L.stalled.stall(r.prefix, job_id, job, r.max_stalled, r.now, r.failed_key, r.events_key)
    if outcome == 'stalled' then
      requeue(r, job_id, job)
    end
  end
  L.list_active.release(r.prefix .. 'list-active')
end

local function reclaim_list_jobs(keys, args)
  local int = L.numbers.int
  local r = {
    prefix = L.hashes.prefix(keys[1], 'stream'), events_key = keys[2], min_idle = int(args[1], nil),
    max_stalled = int(args[2], 1), now = int(args[3], nil), failed_key = args[4],
    lock_duration = int(args[5], 0),
  }
  if not r.min_idle or not r.now or int(redis.call('GET', r.prefix .. 'list-active'), 0) <= 0 then
    return 0
  end
  local count = 0
  each_active(r.prefix, 500, 1000, function(job_id, job)
    local is_stale = job.lastActive
      and not L.stalled.is_alive(r.prefix, job_id, job, r.now, r.lock_duration, r.min_idle)
    if is_stale then
      count = count + 1
      recover(r, job_id, job)
    end
  end)
  return count
end

-- An incomplete scan proves nothing about the counter, so nothing is changed.
local function heal_list_active(keys)
  local prefix = L.hashes.prefix(keys[1], 'id')
  local counter = L.numbers.int(redis.call('GET', prefix .. 'list-active'), 0)
  if counter <= 0 then
    return 0
  end
  local count = 0
  local is_complete = each_active(prefix, 100, 500, function()
    count = count + 1
  end)
  if not is_complete then
    return 0
  end
  if counter > count then
    redis.call('DECRBY', prefix .. 'list-active', counter - count)
  end
  return counter - count
end

local function active_ids(keys, args)
  local first, last = L.numbers.int(args[1], 0), L.numbers.int(args[2], -1)
  local ids, slice = {}, {}
  each_active(L.hashes.prefix(keys[1], 'id'), 500, 1000, function(job_id)
    ids[#ids + 1] = job_id
  end)
  for i = first + 1, last < 0 and #ids or math.min(last + 1, #ids) do
    slice[#slice + 1] = ids[i]
  end
  return slice
end

redis.register_function({
  function_name = 'glidemq_reclaimStalledListJobs', callback = reclaim_list_jobs, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_healListActive', callback = heal_list_active, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'glidemq_getActiveListJobIds', callback = active_ids, flags = { 'allow-oom' },
})
