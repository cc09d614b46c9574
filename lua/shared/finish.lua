-- finish: a worker is done with a job: completed, failed, to be retried, or handed back.
-- A missing or already finished job is not changed; its entry is still acknowledged.
-- Broadcast jobs are exempt, since they finish once per subscription.

local M = {}
L.finish = M

local UNKNOWN_ABSENT = '__'

-- Hints of the caller: nil or '' = look it up, `__` = known to be absent.
local function hinted(hint, stored)
  if hint == UNKNOWN_ABSENT then
    return nil
  end
  return hint and hint ~= '' and hint or stored
end

local function processed_on(hint, job, now)
  if hint and hint ~= '' then
    return L.numbers.int(hint, now)
  end
  return L.numbers.int(job.processedOn, now)
end

local function release_list_slot(c)
  if not c.entry_id or c.entry_id == '' then
    L.list_active.release(c.prefix .. 'list-active')
  end
end

local function notify_parents(c)
  if c.parent then
    L.parents.notify(c.parent)
  end
  L.parents.notify_all(c.prefix, c.job_id)
end

local function settle_order(c, job)
  local key = hinted(c.ordering_key, job.orderingKey)
  if key then
    L.ordering.mark_done(c.prefix, key, c.ordering_seq ~= '' and c.ordering_seq or job.orderingSeq)
  end
end

local function store_completed(c, job)
  local prefix, now = c.prefix, c.now
  redis.call('ZADD', prefix .. 'completed', now, c.job_id)
  redis.call('HSET', prefix .. 'job:' .. c.job_id, 'state', 'completed', 'returnvalue', c.returnvalue,
    'finishedOn', L.numbers.text(now))
  if job.state == 'failed' then
    redis.call('ZREM', prefix .. 'failed', c.job_id)
  end
end

-- c: prefix job_id entry_id group returnvalue now; remove_mode remove_count remove_age; broadcast skip_events
-- skip_metrics; parent = the argument of `L.parents.notify` or nil; hints ordering_key ordering_seq group_key
-- processed_on; `job` (from `L.jobs.read`) when the caller has it. Returns false when there was nothing to finish,
-- else true.
function M.complete(c)
  local prefix, now = c.prefix, c.now
  local job = c.job or L.jobs.read_to_finish(prefix, c.job_id)
  L.stream.ack(prefix .. 'stream', c.group, c.entry_id, c.broadcast)
  release_list_slot(c)
  if not job or (job.state == 'completed' and not c.broadcast) then
    return false
  end
  store_completed(c, job)
  settle_order(c, job)
  job.groupKey = hinted(c.group_key, job.groupKey)
  L.groups.leave(prefix, job, now)
  if not c.skip_events then
    L.events.emit(prefix .. 'events', 'completed', c.job_id, 'returnvalue', c.returnvalue)
  end
  if not c.skip_metrics then
    L.metrics.record(prefix .. 'metrics:completed', now, now - processed_on(c.processed_on, job, now))
  end
  -- Before the retention, which may delete the list of parents.
  notify_parents(c)
  if not c.broadcast then
    L.retention.apply(prefix .. 'completed', prefix, c.job_id, c.remove_mode, c.remove_count or 0,
      c.remove_age or 0, now)
  end
  return true
end

local function count_attempt(f, key)
  if not f.broadcast then
    return L.hashes.add(key, 'attemptsMade', 1)
  end
  local sub = key .. ':sub:' .. f.group
  local attempts = L.hashes.add(sub, 'a', 1)
  redis.call('EXPIRE', sub, 86400)
  return attempts
end

-- On the wire a failure replaces the time at which the attempt began; with `keeps_start` it stays.
local function start_of(f)
  return f.keeps_start and {} or { 'processedOn', L.numbers.text(f.now) }
end

local function retry(f, job, key, attempts)
  local prefix, now, text = f.prefix, f.now, L.numbers.text
  local opts = redis.call('HGET', key, 'opts')
  if opts and string.find(opts, '"fallbacks"', 1, true) then
    L.hashes.add(key, 'fallbackIndex', 1)
  end
  L.priorities.schedule(prefix .. 'scheduled', f.broadcast and f.job_id .. '||' .. f.group or f.job_id,
    L.numbers.int(job.priority, 0), now + f.backoff)
  redis.call('HSET', key, 'state', 'delayed', 'failedReason', f.reason, unpack(start_of(f)))
  -- Ordered jobs keep their slot through retries.
  if L.numbers.int(job.orderingSeq, 0) <= 0 then
    L.groups.leave(prefix, job, now)
  end
  L.events.emit(prefix .. 'events', 'retrying', f.job_id, 'failedReason', f.reason, 'attemptsMade',
    text(attempts), 'delay', text(f.backoff))
  return 'retrying'
end

local function fail_for_good(f, job)
  local prefix, now = f.prefix, f.now
  L.jobs.set_failed(prefix, f.job_id, f.reason, now, unpack(start_of(f)))
  L.ordering.mark_done(prefix, job.orderingKey, job.orderingSeq)
  L.groups.leave(prefix, job, now)
  L.events.emit(prefix .. 'events', 'failed', f.job_id, 'failedReason', f.reason)
  L.metrics.record(prefix .. 'metrics:failed', now, now - processed_on(nil, job, now))
  if not f.broadcast then
    L.retention.apply(prefix .. 'failed', prefix, f.job_id, f.remove_mode, f.remove_count or 0,
      f.remove_age or 0, now)
  end
  return 'failed'
end

-- f: prefix job_id entry_id group reason now max_attempts backoff remove_mode remove_count remove_age
-- broadcast; `job` when the caller has it; keeps_start. Returns 'retrying' or 'failed'. The argument `max_attempts`
-- decides, not the hash. Parents are not notified. Second result: false when there was nothing to fail.
function M.fail(f)
  local key = f.prefix .. 'job:' .. f.job_id
  local job = f.job or L.jobs.read_to_finish(f.prefix, f.job_id)
  L.stream.ack(f.prefix .. 'stream', f.group, f.entry_id, f.broadcast)
  release_list_slot(f)
  local is_over = job and (job.state == 'completed' or job.state == 'failed')
  if not job or (is_over and not f.broadcast) then
    return 'failed', false
  end
  local attempts = count_attempt(f, key)
  if f.max_attempts > 0 and attempts < f.max_attempts then
    return retry(f, job, key, attempts), true
  end
  return fail_for_good(f, job), true
end

-- d: prefix job_id entry_id group broadcast. Puts a fetched job back at the end of the stream.
-- Returns 1, or 0 when the job is missing. An ordered job keeps its slot.
function M.defer(d)
  local key = d.prefix .. 'job:' .. d.job_id
  local found = redis.call('HMGET', key, 'id', 'state', 'name')
  L.stream.ack(d.prefix .. 'stream', d.group, d.entry_id, d.broadcast)
  release_list_slot(d)
  if not (found[1] or found[2] or found[3]) then
    return 0
  end
  L.stream.append(d.prefix .. 'stream', d.job_id, found[3])
  redis.call('HSET', key, 'state', 'waiting')
  return 1
end
