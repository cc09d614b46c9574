-- gmo_reclaim: reclaim the jobs of lost workers.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 consumer of the caller (unused)  4 min_idle_ms  5 lock_ms  6 times a job may stall
--       7 silent_ms: a worker is silent after this long without a heartbeat; 0: do not look for silent workers
-- REPLY {ids of the flows that need gmo_advance_flow, a row for each lost worker, a row for each silent one}
--       lost: worker, how many jobs it held, how many of them had begun, ids of some of these
--       silent: worker, how many jobs it holds (of at most 200), its last heartbeat, when the last of its leases ends
-- EFFECTS none for up to four seconds after a gap of lock_ms without any caller, see lease.lua. Else, of at most 100
--   entries of the stream and 100 jobs from the lists, those whose lease has ended go back to where they came from, see
--   losses.lua; a job that stalled too often fails, a node with its dependents. A lease is the job's own, else the
--   longer one of its worker's and the caller's. A pending entry with a valid lease gets the age of its last heartbeat,
--   so that it is checked again as soon as its lease ends.
-- EVENT stalled or failed for each lost job
local PAGE = 100
-- States in which a silent worker does not matter: the job has ended, or will get a new entry when it is due.
local STRAY = { completed = true, failed = true, delayed = true, ['waiting-children'] = true }

-- The lease of a stream job is valid: its entry stays with its consumer. A user without the right to XCLAIM checks it
-- again.
local function renew_entry(r, entry_id, consumer, job)
  local age = math.max(r.now - L.numbers.int(job.lastActive, r.now), 0)
  redis.pcall('XCLAIM', r.prefix .. 'stream', r.group, consumer, 0, entry_id, 'IDLE', L.numbers.text(age), 'JUSTID')
end

local function is_alive(r, job_id, job, holder)
  local lock_ms = L.lease.duration(holder, r.lock_duration)
  return L.stalled.is_alive(r.prefix, job_id, job, r.now, lock_ms, r.min_idle)
end

local function reclaim_entry(r, job_id, entry_id, consumer)
  local job = L.jobs.read(r.prefix, job_id)
  if not job or STRAY[job.state] then
    return L.losses.forget(r, job_id, entry_id)
  end
  local is_expired, is_new = L.expiry.check(r.prefix, job_id, r.now, job)
  if is_expired then
    L.losses.forget(r, job_id, entry_id)
    return is_new and r.on_dead(job_id)
  end
  local holder = L.losses.holder(r.prefix, job_id, consumer)
  if is_alive(r, job_id, job, holder) then
    return renew_entry(r, entry_id, consumer, job)
  end
  return L.losses.add(r, job_id, entry_id, job, holder)
end

local function reclaim_listed(r, job_id)
  local job, holder = L.jobs.read(r.prefix, job_id), L.losses.holder(r.prefix, job_id, '')
  if not job or job.state ~= 'active' then
    return redis.call('ZREM', r.prefix .. 'gmo:list-held', job_id)
  elseif is_alive(r, job_id, job, holder) then
    return redis.call('ZADD', r.prefix .. 'gmo:list-held', L.numbers.int(job.lastActive, r.now), job_id)
  end
  return L.losses.add(r, job_id, '', job, holder)
end

local function find(r)
  for _, row in ipairs(redis.call('XPENDING', r.prefix .. 'stream', r.group, 'IDLE', r.min_idle, '-', '+', PAGE)) do
    local found = redis.call('XRANGE', r.prefix .. 'stream', row[1], row[1])[1]
    local job_id = found and L.stream.job_id(found[2])
    if job_id then
      r.guard(job_id, row[1], function()
        reclaim_entry(r, job_id, row[1], row[2])
      end)
    else
      L.stream.ack(r.prefix .. 'stream', r.group, row[1], false)
    end
  end
  local held = r.prefix .. 'gmo:list-held'
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', r.now - r.min_idle, 'LIMIT', 0, PAGE)) do
    r.guard(job_id, '', function()
      reclaim_listed(r, job_id)
    end)
  end
end

-- Workers of ours that were silent for a while and hold jobs, whose leases have not ended.
local function silent(r, after)
  local rows, places = {}, {}
  local function look(job_id, consumer)
    local key = r.prefix .. 'job:' .. job_id
    local job = redis.call('HMGET', key, 'state', 'lastActive', 'gmo:token')
    local last, holder = L.numbers.int(job[2], r.now), job[3] and job[3]:match('^(.*)/') or consumer
    if job[1] ~= 'active' or r.now - last < after or not holder:find('^gmo%-') then
      return
    end
    local own = L.options.lock_duration(redis.call('HGET', key, 'opts'))
    local ends = last + (own or L.lease.duration(holder, r.lock_duration))
    if ends > r.now then
      places[holder] = places[holder] or #rows + 1
      local row = rows[places[holder]] or { holder, 0, last, ends }
      row[2], row[3], row[4] = row[2] + 1, math.max(row[3], last), math.max(row[4], ends)
      rows[places[holder]] = row
    end
  end
  local idle = math.min(after, r.min_idle)
  for _, row in ipairs(redis.call('XPENDING', r.prefix .. 'stream', r.group, 'IDLE', idle, '-', '+', PAGE)) do
    local found = redis.call('XRANGE', r.prefix .. 'stream', row[1], row[1])[1]
    pcall(look, found and L.stream.job_id(found[2]) or '', row[2])
  end
  local held = r.prefix .. 'gmo:list-held'
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', r.now - after, 'LIMIT', 0, PAGE)) do
    pcall(look, job_id, '')
  end
  return rows
end

local function reclaim(keys, args)
  local prefix, now, flows, trouble = keys[1]:sub(1, -#'stream' - 1), tonumber(args[1]), {}, nil
  local r = { prefix = prefix, group = args[2], min_idle = tonumber(args[4]), lock_duration = tonumber(args[5]),
    max_stalled = tonumber(args[6]), now = now, workers = {}, order = {}, flows = flows }
  function r.on_dead(job_id)
    L.dead_letters.note(prefix, job_id, now)
    local reason = redis.call('HGET', prefix .. 'job:' .. job_id, 'failedReason') or 'stalled'
    local flow_id = L.settle.job_failed(prefix, job_id, reason, now)
    if flow_id ~= '' then
      flows[#flows + 1] = flow_id
    end
    L.keeping.of_failed(prefix, job_id, now)
  end
  -- One unreadable job must not prevent the others from being reclaimed.
  function r.guard(job_id, entry_id, act)
    local is_fine, why = pcall(act)
    if not is_fine and L.jobs.bury(prefix, job_id, now) then
      L.losses.forget(r, job_id, entry_id)
    elseif not is_fine then
      trouble = type(why) == 'table' and why.err or tostring(why)
    end
  end
  if L.lease.may_end(prefix, now, r.lock_duration) then
    find(r)
  end
  local rows = L.losses.take_back(r)
  if trouble then
    error(trouble, 0)
  end
  local after = L.numbers.int(args[7], 0)
  return { flows, rows, after > 0 and silent(r, after) or {} }
end

redis.register_function { function_name = 'gmo_reclaim', callback = reclaim, flags = { 'allow-oom' } }
