-- arrays: array nodes. An array is a node whose job has the field gmo:array, a JSON object: size; per (elements per
-- chunk of items, 0 for a range); running (how many elements run at once, 0 = no limit); failed (how many may fail
-- before the array is stopped, -1 = all of them run, and any failure fails it); jobs (how many elements are ordinary jobs
-- at once, see element_jobs.lua; none = workers lease slices of it, see slices.lua); keyed (whether the ordering key in
-- its options contains the item). While its elements run, its job is active and no worker holds it.
--   <prefix>gmo:arrays                    zset: job ids of open arrays -> from when on a slice can be leased, ms; if one
--                                         can, since when the array waits for its turn; NEVER: its elements are jobs
--   <prefix>gmo:array-priorities          zset: job ids of those that have a priority -> the priority
--   <prefix>gmo:array:<job id>            hash: opened (ms), next (the first element that was never leased), completed,
--                                         failed, skipped, running, leases (how many slices there were), epoch, told
--                                         (when its progress was last written), run (how often it was opened again),
--                                         oldest (the first of the runs whose failed elements wait to run again), anew
--                                         (all of its elements run when it opens again), holds (until when it does not
--                                         end, as a request changes more of its elements), appended (how many elements
--                                         were added by others), begun (one has ended)
--   <prefix>gmo:array:<job id>:items      hash: number of a chunk -> its items, a line of JSON each
--   <prefix>gmo:array:<job id>:appended   hash: element that another has added -> its item
--   <prefix>gmo:array:<job id>:done       bitmap: completed elements
--   <prefix>gmo:array:<job id>:results    hash: element -> its result, unless that is null
--   <prefix>gmo:array:<job id>:skipped    set: elements
--   <prefix>gmo:array:<job id>:failed:<run>  hash: element that failed in this run -> reason
--   <prefix>gmo:array:<job id>:again      zset: elements that were given back or wait for their next attempt, as the
--                                         text of a slice -> from when on they may run, ms
--   <prefix>gmo:array:<job id>:attempts   hash: element with a failed attempt -> how many
--   <prefix>gmo:array:<job id>:lost       hash: element whose worker was lost -> how many losses it may have caused
--   <prefix>gmo:array:<job id>:slices     set: job ids of its leased slices
-- Its progress and its end: array_ends.lua; elements that are changed by hand: element_changes.lua.
L.arrays = {}
local NEVER = 9007199254740991
local int = L.numbers.int
L.arrays.NEVER = NEVER

-- Reads an open or ended array; nil if the job is none.
function L.arrays.read(prefix, job_id)
  local text = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:array')
  if not text then
    return nil
  end
  local key, of = prefix .. 'gmo:array:' .. job_id, cjson.decode(text)
  local v = redis.call('HMGET', key, 'next', 'completed', 'failed', 'skipped', 'running', 'run', 'oldest', 'opened', 'told',
    'appended', 'ended', 'holds')
  return { prefix = prefix, id = job_id, key = key, given = of.size, size = of.size + int(v[10], 0), per = of.per, max_running = of.running,
    jobs = int(of.jobs, 0), is_keyed = of.keyed, range = of.start and L.numbers.text(of.start) .. ' ' .. L.numbers.text(of.step) or '', max_failed = of.failed,
    next = int(v[1], 0), completed = int(v[2], 0), failed = int(v[3], 0), skipped = int(v[4], 0),
    running = int(v[5], 0), run = int(v[6], 0), oldest = int(v[7], 0), opened = int(v[8], 0), told = int(v[9], 0), ended = int(v[11], 0), holds = int(v[12], 0) }
end

-- From when on a slice can be leased.
local function available(a, now)
  if a.max_running > 0 and a.running >= a.max_running then
    return NEVER
  elseif a.next < a.size or a.oldest < a.run then
    return a.opened
  end
  local first = redis.call('ZRANGE', a.key .. ':again', 0, 0, 'WITHSCORES')[2]
  first = first and tonumber(first) or NEVER
  return first <= now and a.opened or first
end

-- Notes from when on a slice can be leased. An array from which slices were leased now goes behind all others, so that
-- no array has to wait for the end of another. An event wakes idle workers if one can be leased sooner than they know; not
-- if this call `fetches` next.
function L.arrays.place(a, now, had_its_turn, fetches)
  local key, due = a.prefix .. 'gmo:arrays', a.jobs == 0 and available(a, now) or NEVER
  local known = tonumber(redis.call('ZSCORE', key, a.id) or NEVER)
  local is_news = due < known and known > now and not (fetches and due <= now)
  if due <= now then
    due = not had_its_turn and known <= now and known or now
  end
  redis.call('ZADD', key, L.numbers.text(due), a.id)
  if a.jobs > 0 then
    L.element_jobs.top_up(a, now)
  end
  if is_news then
    L.events.emit(a.prefix .. 'events', 'active', a.id)
  end
end

-- Opens an array whose dependencies have ended: workers lease slices after the delay. It is active, but from no list.
function L.arrays.open(prefix, job_id, delay, now)
  local job_key = prefix .. 'job:' .. job_id
  local priority = int(redis.call('HGET', job_key, 'priority'), 0)
  redis.call('HSET', job_key, 'state', 'active', 'lastActive', L.numbers.text(now), 'activeSource', 'stream')
  redis.call('HSET', prefix .. 'gmo:array:' .. job_id, 'opened', L.numbers.text(now + delay))
  local a = L.arrays.read(prefix, job_id)
  if priority > 0 and a.jobs == 0 then
    redis.call('ZADD', prefix .. 'gmo:array-priorities', priority, job_id)
  end
  L.arrays.place(a, now)
  if a.completed + a.failed + a.skipped == a.size then -- by hand
    L.element_changes.end_if_done(a, now)
  end
end

-- Makes sure that an array whose job is active goes on: its elements run, or can run. If none is left that could, although
-- some have not ended, another client has removed them, and the node fails. look(job id) looks for the job of an element.
function L.arrays.ensure(prefix, job_id, now, look)
  local a = L.arrays.read(prefix, job_id)
  if L.element_changes.end_held(a, now) then
    return
  elseif a.jobs > 0 then
    return L.element_jobs.ensure(a, now, look)
  end
  for _, slice_id in ipairs(redis.call('SMEMBERS', a.key .. ':slices')) do
    if redis.call('EXISTS', prefix .. 'job:' .. slice_id) == 1 then
      return L.arrays.place(a, now)
    end
    redis.call('SREM', a.key .. ':slices', slice_id)
  end
  a.running = 0
  redis.call('HSET', a.key, 'running', 0)
  if available(a, now) == NEVER then
    local reason = 'elements that had not ended were removed. Fix: restart the flow'
    return L.end_nodes.fail_and_notify(L.record.of_job(prefix, job_id), prefix .. job_id, reason, now)
  end
  L.arrays.place(a, now)
end

-- Closes an array: its slices are taken from their workers, and nothing is leased any more. Nothing happens to others.
function L.arrays.close(prefix, job_id, now)
  if redis.call('ZREM', prefix .. 'gmo:arrays', job_id) == 0 then
    return
  end
  redis.call('ZREM', prefix .. 'gmo:array-priorities', job_id)
  local a = L.arrays.read(prefix, job_id)
  L.slices.take_all(a)
  if a.jobs > 0 then
    L.element_jobs.take_all(a, now)
  end
end

-- Marks an array of which all elements run when it opens again, as their inputs have changed.
function L.arrays.renew(prefix, job_id)
  redis.call('HSET', prefix .. 'gmo:array:' .. job_id, 'anew', 1)
end

-- Whether an array has completed; one that was skipped because of others has elements without an end.
local function has_completed(a, state)
  return state == 'completed' and (a.completed + a.failed + a.skipped == a.size
    or redis.call('HEXISTS', a.prefix .. 'job:' .. a.id, 'gmo:skipped') == 0)
end

-- A node that runs again: a failed or interrupted array keeps its completed elements, and the others run; of a completed
-- one all run. If it runs again for the sake of single elements, the others keep their ends.
function L.arrays.reopen(prefix, job_id, state, now)
  local a = L.arrays.read(prefix, job_id)
  if not a then
    return
  end
  L.arrays.close(prefix, job_id, now)
  redis.call('HDEL', a.key, 'begun')
  if redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:given') == 1 then -- it ends by hand; its elements keep their ends
    return
  end
  local is_anew = redis.call('HEXISTS', a.key, 'anew') == 1
  if not is_anew and L.element_changes.apply_noted(a, now) then
    return
  elseif is_anew or has_completed(a, state) then
    local v = redis.call('HMGET', a.key, 'leases', 'epoch')
    L.array_keys.erase(prefix, job_id)
    redis.call('HSET', a.key, 'leases', v[1] or 0, 'epoch', v[2] or 0) -- no id of a job is used twice
  elseif a.failed > 0 then
    redis.call('HSET', a.key, 'failed', 0, 'run', a.run + 1)
  end
end
