-- losses: the jobs that a lost worker held. Only one whose handler had begun can have caused the loss; prefetched jobs
-- go back without using up an attempt. Among several that had begun, the cause is unknown: they are suspects.
-- A token ends in '+' if the job was prefetched; its worker writes the token to gmo:ran when its handler begins.
-- gmo:lost: how often its worker was lost while it ran. gmo:suspect: how many losses it may have caused; a worker runs
-- few suspects at a time, in the end one, and reports that first. Jobs that ran beside one are suspects too: otherwise
-- a second culprit would stay unknown, and each suspect beside it would be charged instead. 0: it was only prefetched,
-- as far as is known. All three are removed when an attempt ends well.
L.losses = {}
L.losses.MARKS = { 'stalledCount', 'gmo:lost', 'gmo:suspect' }

local function read(prefix, job_id)
  local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'gmo:token', 'gmo:ran', 'gmo:suspect', 'attemptsMade')
  local token = v[1] or ''
  return token:sub(-1) ~= '+' or v[2] == token, L.numbers.int(v[3], 0), L.numbers.int(v[4], 0)
end

local READY = { waiting = true, prioritized = true, ['group-waiting'] = true, delayed = true }

-- Whether an open job waits for a worker, or was only prefetched: no handler runs it.
function L.losses.is_idle(job_key, state)
  if state ~= 'active' then
    return READY[state] or false
  end
  local v = redis.call('HMGET', job_key, 'gmo:token', 'gmo:ran')
  return (v[1] or ''):sub(-1) == '+' and v[2] ~= v[1]
end

-- The worker that holds an active job: by the token, else the consumer of its entry; '' if unknown.
function L.losses.holder(prefix, job_id, consumer)
  local token = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:token') or ''
  return token:match('^(.*)/') or consumer
end

-- Adds a job to those that its worker lost. `entry_id`: '' = from a list.
function L.losses.add(r, job_id, entry_id, job, holder)
  local has_begun, suspect, made = read(r.prefix, job_id)
  local worker = r.workers[holder]
  if not worker then
    worker = { name = holder, jobs = {}, begun = 0, suspects = 0 }
    r.workers[holder], r.order[#r.order + 1] = worker, worker
  end
  has_begun = has_begun and job.state == 'active'
  worker.jobs[#worker.jobs + 1] = { id = job_id, entry = entry_id, job = job, has_begun = has_begun, suspect = suspect,
    attempt = made + 1 }
  worker.begun = worker.begun + (has_begun and 1 or 0)
  worker.suspects = worker.suspects + (has_begun and suspect > 0 and 1 or 0)
end

-- Whether the loss counts against a job: it is the only suspect, or none of those that had begun is one.
local function is_charged(worker, lost)
  return lost.has_begun and (worker.suspects == 0 or (worker.suspects == 1 and lost.suspect > 0))
end

L.losses.is_charged = is_charged

-- Records that a handler had begun, in the job and in its log.
local function note(r, worker, lost, key)
  L.hashes.add(key, 'gmo:lost', 1)
  redis.call('HSET', key, 'gmo:begun', '1')
  redis.call('HDEL', key, 'gmo:waited')
  local name = worker.name ~= '' and 'worker ' .. worker.name or 'a worker'
  redis.call('RPUSH', r.prefix .. 'log:' .. lost.id, name .. ' was lost while it ran attempt ' .. lost.attempt
    .. ' of this job; that costs no attempt')
end

-- Puts a job back where it came from. lost: id, entry, job.
function L.losses.put_back(r, lost)
  local key = r.prefix .. 'job:' .. lost.id
  local array_id = redis.call('HGET', key, 'gmo:slice')
  if array_id then
    local a = L.slices.array(r.prefix, lost.id, array_id)
    if a then
      L.slices.give_back(a, lost.id, r.now)
      L.arrays.place(a, r.now)
    end
    return
  end
  if lost.entry ~= '' then
    L.stream.ack(r.prefix .. 'stream', r.group, lost.entry, false)
  else
    redis.call('ZREM', r.prefix .. 'gmo:list-held', lost.id)
    L.list_active.release(r.prefix .. 'list-active')
  end
  redis.call('HSET', key, 'state', 'waiting')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  if lost.entry ~= '' then
    L.stream.append(r.prefix .. 'stream', lost.id, lost.job.name)
  else
    L.jobs.make_ready(r.prefix, lost.id, lost.job, L.numbers.int(lost.job.priority, 0))
  end
end

-- Takes a running job from its worker because a user wants it. lost: as above. The log of an array says it of a slice.
function L.losses.give_away(r, holder, lost)
  local slice = redis.call('HMGET', r.prefix .. 'job:' .. lost.id, 'gmo:slice', 'gmo:elements')
  redis.call('RPUSH', r.prefix .. 'log:' .. (slice[1] or lost.id), (slice[1] and '[' .. (slice[2] or '') .. '] ' or '')
    .. 'was taken back from worker ' .. holder .. '; that costs no attempt')
  L.history.note(r.prefix .. 'job:' .. lost.id, r.now, 'taken-back', holder)
  L.losses.put_back(r, lost)
  L.events.emit(r.prefix .. 'events', 'stalled', lost.id)
end

-- A user may let the worker end the job first: the field gmo:until is "<until when, ms> <token>". Returns nil if this
-- attempt has no such limit, false if it has, and true if the time is over: then the job was taken from it.
function L.losses.is_over(r, job_id, token, limit)
  local until_ms, of = string.match(limit or '', '^(%d+) (.*)$')
  if of ~= token then
    return nil
  elseif r.now < tonumber(until_ms) then
    return false
  end
  local entry_id = redis.call('HGET', r.prefix .. 'job:' .. job_id, 'gmo:entry') or ''
  local lost = { id = job_id, entry = entry_id, job = L.jobs.read(r.prefix, job_id) }
  L.losses.give_away(r, L.losses.holder(r.prefix, job_id, ''), lost)
  return true
end

local function take_back(r, worker, lost)
  local key = r.prefix .. 'job:' .. lost.id
  local array_id = redis.call('HGET', key, 'gmo:slice')
  if array_id then
    return L.elements.lost(r, lost.id, array_id, lost.has_begun, is_charged(worker, lost))
  end
  L.history.note(key, r.now, 'lost', worker.name)
  if not lost.has_begun then
    redis.call('HSETNX', key, 'gmo:suspect', '0')
    L.events.emit(r.prefix .. 'events', 'stalled', lost.id)
    return L.losses.put_back(r, lost)
  end
  note(r, worker, lost, key)
  local charged = is_charged(worker, lost)
  L.hashes.add(key, 'gmo:suspect', 1)
  if not charged then
    L.events.emit(r.prefix .. 'events', 'stalled', lost.id)
  elseif L.stalled.stall(r.prefix, lost.id, lost.job, r.max_stalled, r.now) == 'failed' then
    L.losses.forget(r, lost.id, lost.entry)
    return r.on_dead(lost.id)
  end
  return L.losses.put_back(r, lost)
end

-- A held job that no worker will end: it has ended or was removed.
function L.losses.forget(r, job_id, entry_id)
  if entry_id ~= '' then
    return L.stream.ack(r.prefix .. 'stream', r.group, entry_id, false)
  end
  redis.call('ZREM', r.prefix .. 'gmo:list-held', job_id)
  return L.list_active.release(r.prefix .. 'list-active')
end

-- Reclaims all added jobs. Returns for each worker its name, how many jobs were requeued or failed, how many of them
-- had begun, and the ids of some of these.
function L.losses.take_back(r)
  local rows = {}
  for _, worker in ipairs(r.order) do
    local row = { worker.name, #worker.jobs, worker.begun }
    for _, lost in ipairs(worker.jobs) do
      r.guard(lost.id, lost.entry, function()
        take_back(r, worker, lost)
      end)
      if lost.has_begun and #row < 8 then
        row[#row + 1] = lost.id
      end
    end
    rows[#rows + 1] = row
  end
  return rows
end
