-- outcome: the outcome of an attempt, as a worker reports it, of one of the kinds below. Part of gmo_finish_and_fetch.
-- In ARGS each outcome is 9 words: kind, job id, stream entry id ('' = from a list), token, processedOn, text,
-- retention, number, number:
--   done      text = result JSON
--   skip      text = reason: the job was not needed; it ends as completed, with the field gmo:skipped
--   fail      text = reason, numbers = attempts allowed, backoff in ms. Kind `grouped`: see failure_groups.lua
--   later     text = new data ('' = keep), numbers = ms since the epoch, 1 if no handler was called (its queue timeout
--             continues); the attempt does not count
--   children  wait until the child jobs (second number 1: the dependencies) have ended; the attempt does not count
--   suspend   text = reason, number = timeout in ms (0 = none)
--   back      to the end of the queue; the attempt does not count
--   elements  text = lines: of a slice, see slices.lua, kept_elements.lua; of a node that adds to arrays, see appending.lua
--   begun     not an outcome: the handler of a prefetched job begins
-- Retention is '' or `<mode> <count> <age in seconds>` with glide-mq's modes; nodes of flows are kept.
-- Verdicts: ok, retrying, failed, again (too much work for one call: send it again), `stale <why>`, `error <message>`
-- (the job's keys are broken). Of elements: ok for all, else a line for each.
L.outcome = { WORDS = 9 }
local FLOW_FAILURE = 50

-- The job fields for finishing, or nil and the reason why the attempt no longer owns the job.
local function read(x, o)
  local v = redis.call('HMGET', o.key, 'state', 'gmo:token', 'processedOn', 'groupKey', 'orderingKey', 'parentId',
    'gmo:flow', 'gmo:home', 'gmo:node', 'gmo:grows', 'gmo:messages', 'gmo:published', 'gmo:repeats', 'gmo:history',
    'gmo:slice')
  if not v[1] then
    return nil, 'stale job ' .. o.job_id .. ' was removed'
  end
  if v[1] ~= 'active' or v[2] ~= o.token or v[3] ~= o.processed_on then
    return nil, 'stale this attempt no longer owns job ' .. o.job_id .. ', which is ' .. v[1]
  end
  local job = { id = o.job_id, state = v[1], processedOn = v[3] }
  if v[7] and v[8] then
    job.flow = { id = v[7], home = v[8], node = v[9] or o.job_id, grows = v[10] ~= false, ended = x.ended }
  end
  if v[11] or v[12] or v[13] or v[14] or v[15] then
    job.messages, job.published, job.repeats, job.history, job.array = v[11] or nil, v[12] or nil, v[13], v[14], v[15]
  end
  job.element_of = not v[15] and L.element_jobs.array_of(x.prefix, o.job_id) or nil
  if o.kind ~= 'done' or v[4] or v[5] or v[6] then -- to complete a job without ordering key and parent takes no more
    local more = redis.call('HMGET', o.key, 'orderingSeq', 'groupSlot', 'priority', 'parentQueue', 'name')
    job.groupKey, job.orderingKey, job.parentId = v[4] or nil, v[5] or nil, v[6] or nil
    job.orderingSeq, job.groupSlot, job.priority = more[1] or nil, more[2] or nil, more[3] or nil
    job.parentQueue, job.name = more[4] or nil, more[5] or nil
  end
  return job
end

-- Records that the messages of this attempt are accepted: how many, which attempt, and the job with their stream.
local function accept_messages(o, job)
  if job.messages:match('^%d+ (.*)$') == L.lease.attempt(o.token, o.processed_on) then
    redis.call('HSET', o.key, 'gmo:accepted', job.messages .. ' ' .. o.job_id)
  end
end

-- Completes the job, also as skipped.
local function done(x, o, job)
  local mode, count, age = L.keeping.of_outcome(o, job)
  local result = o.kind == 'skip' and 'null' or o.text
  L.gathered.release(x, o)
  redis.call('HSET', o.key, 'state', 'completed', 'returnvalue', result, 'finishedOn', x.now_text)
  if mode == '0' and o.kind == 'done' and not job.element_of then
    L.gathered.list(x, o.job_id)
  else
    redis.call('ZADD', x.prefix .. 'completed', x.now, o.job_id)
  end
  if job.orderingKey or job.groupKey then
    L.ordering.mark_done(x.prefix, job.orderingKey, job.orderingSeq)
    L.groups.leave(x.prefix, job, x.now)
  end
  if o.kind == 'skip' then
    redis.call('HSET', o.key, 'gmo:skipped', o.text)
    L.events.emit(x.events, 'completed', o.job_id, 'returnvalue', result, 'skipped', o.text)
  else
    L.events.emit(x.events, 'completed', o.job_id, 'returnvalue', result)
    if job.messages then
      accept_messages(o, job)
    end
    if job.published then
      L.published.accept(x, o, job)
    end
  end
  x.completed, x.took = x.completed + 1, x.took + x.now - L.numbers.int(job.processedOn, x.now)
  L.children.notify_parent(x, o, job)
  if job.flow and o.kind == 'skip' then
    x.spent = x.spent + FLOW_FAILURE
    x.flows[#x.flows + 1] = L.settle.job_skipped(job.flow, x.prefix, o.job_id, o.text, x.now)
  elseif job.flow then
    x.flows[#x.flows + 1] = L.settle.job_completed(job.flow, x.prefix, o.job_id, x.now)
  elseif job.element_of then
    L.element_jobs.settle(x, x.prefix, o.job_id, o.items)
  else
    -- the supervisor notifies the dependents of a skipped portable node
    if o.kind == 'done' or not L.jobs.is_portable(redis.call('HGET', o.key, 'opts')) then
      x.spent = x.spent + L.gathered.notify_dependents(x, o.job_id)
    end
    L.keeping.apply(x.prefix, 'completed', o.job_id, mode, count, age, x.now)
  end
  return 'ok'
end

-- Fails the job for good or for a retry.
local function fail(x, o, job)
  local mode, count, age = L.keeping.of_outcome(o, job)
  local key = o.key
  local dead = mode ~= '0' and L.dead_letters.copy(x.prefix, o.job_id, o.text) or nil
  if o.entry_id == '' then
    redis.call('ZREM', x.prefix .. 'gmo:list-held', o.job_id)
  end
  local verdict = L.finish.fail { prefix = x.prefix, job_id = o.job_id, entry_id = o.entry_id, group = x.group,
    reason = o.text, now = x.now, max_attempts = o.first, backoff = o.second, remove_mode = '0', job = job,
    keeps_start = true }
  if verdict == 'retrying' then
    L.history.ended(x, o, job, verdict, o.text)
    redis.call('HDEL', key, 'gmo:entry', 'gmo:waited', unpack(L.losses.MARKS))
    return verdict
  end
  L.failure_groups.note(key, o, x.now_text)
  L.dead_letters.note(x.prefix, o.job_id, x.now, dead)
  if job.flow then
    x.spent = x.spent + FLOW_FAILURE
  end
  x.flows[#x.flows + 1] = L.settle.job_failed(x.prefix, o.job_id, o.text, x.now)
  L.keeping.apply(x.prefix, 'failed', o.job_id, mode, count, age, x.now)
  return verdict
end

-- Ends the attempt but not the job: it waits for a time, child jobs, a signal or its turn.
local function park(x, o, job)
  local p = { prefix = x.prefix, job_id = o.job_id, entry_id = o.entry_id, group = x.group, now = x.now }
  local refusal = o.kind == 'children' and o.second ~= 1 and L.children.refusal(x.prefix, o.job_id)
  if refusal then
    o.text, o.first = refusal, 0
    return fail(x, o, job)
  end
  if o.entry_id == '' then
    redis.call('ZREM', x.prefix .. 'gmo:list-held', o.job_id)
  end
  if o.kind == 'later' then
    p.due, p.data = math.max(o.first, x.now), o.text
    L.park.postpone(p, job)
  elseif o.kind == 'children' then
    if not L.park.await_children(p, job) then L.children.await(x.prefix, o.job_id, x.now) end
  elseif o.kind == 'suspend' then
    p.reason, p.timeout = o.text, o.first
    L.park.suspend(p, job)
  else
    L.finish.defer(p)
  end
  local key = o.key
  redis.call('HDEL', key, 'gmo:token', 'gmo:entry', 'processedOn', 'lastActive')
  L.history.parked(x, o, job)
  if o.kind ~= 'back' and o.second ~= 1 then -- its handler was called: no queue timeout
    redis.call('HSET', key, 'gmo:begun', '1')
    redis.call('HDEL', key, unpack(L.losses.MARKS))
  end
  return 'ok'
end
local ACT = { done = done, skip = done, fail = fail, later = park, children = park, suspend = park, back = park }

-- Reads the outcome from args[at] on.
function L.outcome.read(args, at)
  return L.failure_groups.split { kind = args[at], job_id = args[at + 1], entry_id = args[at + 2], token = args[at + 3],
    processed_on = args[at + 4], text = args[at + 5], retention = args[at + 6],
    first = tonumber(args[at + 7]) or 0, second = tonumber(args[at + 8]) or 0 }
end

-- Accepts an outcome and returns the verdict. Notifying the dependents of a node counts against the budget of the call.
function L.outcome.accept(x, o)
  if not ACT[o.kind] and o.kind ~= 'begun' and o.kind ~= 'elements' then
    return 'stale unknown outcome kind ' .. tostring(o.kind)
  end
  if x.spent >= x.budget then
    return 'again'
  end
  o.key = x.prefix .. 'job:' .. o.job_id
  local job, stale = read(x, o)
  if not job then
    return stale
  end
  if o.kind == 'begun' then
    redis.call('HSET', o.key, 'gmo:ran', o.token)
    return 'ok'
  elseif job.array then
    return L.elements.accept(x, o, job.array)
  elseif job.element_of then
    L.gathered.flush(x)
    L.element_jobs.read_line(o)
  elseif o.kind == 'elements' then
    L.appending.accept(x, o, job)
  end
  if job.flow and o.kind ~= 'done' then
    L.gathered.flush(x)
  elseif job.flow then
    job.flow.dependents = redis.call('SCARD', x.prefix .. 'parents:' .. o.job_id)
    x.spent = x.spent + math.min(job.flow.dependents, FLOW_FAILURE)
  end
  local verdict = ACT[o.kind](x, o, job)
  L.scheduler.settled(x.prefix, job, o.kind, verdict, x.now)
  return verdict
end
