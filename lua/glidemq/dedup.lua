-- glidemq_dedup: create one job unless a recent one has the same deduplication id.
-- KEYS  1 dedup  2 id counter  3 stream  4 scheduled  5 events  6 deps set of the parent (optional)
-- ARGS  1 dedupId  2 window ms (throttle)  3 mode: simple, throttle or debounce
--       4 to 20 as 1 to 17 of glidemq_addJob  21 lifo  22 parentQueue  23 skipEvents
-- REPLY job id | skipped | duplicate | ERR:COST_EXCEEDS_CAPACITY
-- EVENT removed (of a replaced job); added {name}

local REPLACEABLE = { delayed = true, prioritized = true }
local OVER = { completed = true, failed = true }

-- Job id and time of the last job with this deduplication id, or nil.
local function last_job(dedup_key, dedup_id)
  local entry = redis.call('HGET', dedup_key, dedup_id)
  if not entry then
    return nil, nil
  end
  local job_id, time = string.match(entry, '^([^:]*):(.*)$')
  return job_id, L.numbers.int(time, 0)
end

-- `skip`, `replace` or `create`.
local function decide(mode, window, now, state, time)
  if mode == 'throttle' then
    return window > 0 and now - time < window and 'skip' or 'create'
  elseif not state or OVER[state] then
    return 'create'
  elseif mode == 'debounce' then
    return REPLACEABLE[state] and 'replace' or 'skip'
  end
  return mode == 'simple' and 'skip' or 'create'
end

-- The number of a replaced job will never be used: mark it, so that the group does not wait for it. Nothing else in the
-- group changes: the next activation consumes the markers. Parked jobs that waited for this number continue at once.
local function give_up_number(prefix, old, now)
  local seq = L.numbers.int(old.orderingSeq, 0)
  if not old.groupKey or seq <= 0 then
    return
  end
  local hash_key = prefix .. 'group:' .. old.groupKey
  if seq < L.numbers.int(redis.call('HGET', hash_key, 'nextSeq'), 0) then
    L.groups.leave(prefix, old, now)
    return
  end
  redis.call('HSET', hash_key, 'skip:' .. L.numbers.text(seq), 1)
  -- The markers of many replacements are read only if a job waits.
  if redis.call('EXISTS', prefix .. 'groupq:' .. old.groupKey) == 1 then
    L.groups.promote(prefix, old.groupKey, L.groups.load(prefix, old.groupKey), now, true)
  end
end

local function replace(prefix, old_id, old, now, skip_events)
  L.priorities.unschedule(prefix, old_id)
  L.ordering.mark_done(prefix, old.orderingKey, old.orderingSeq)
  redis.call('UNLINK', prefix .. 'job:' .. old_id)
  give_up_number(prefix, old, now)
  if not L.numbers.flag(skip_events) then
    L.events.emit(prefix .. 'events', 'removed', old_id)
  end
end

-- Notes when the entry may be removed: after the longest window that any caller passed, once the job has ended.
-- gmo_cleanup removes it.
local function keep_until(prefix, dedup_id, at)
  local noted = prefix .. 'gmo:dedup'
  if at > (tonumber(redis.call('ZSCORE', noted, dedup_id) or nil) or 0) then
    redis.call('ZADD', noted, at, dedup_id)
  end
end

local function dedup(keys, args)
  local prefix = L.hashes.prefix(keys[2], 'id')
  local job = L.add.parse(prefix, args, 4)
  local now = job.timestamp
  if not now then
    return redis.error_reply('ERR glidemq_dedup: the timestamp is not a number')
  end
  local old_id, time = last_job(keys[1], args[1])
  local window = args[3] == 'throttle' and L.numbers.int(args[2], 0) or 0
  if old_id then
    local old = L.jobs.read(prefix, old_id)
    local decision = decide(args[3], window, now, old and old.state, time)
    if decision == 'skip' then
      keep_until(prefix, args[1], time + window)
      return 'skipped'
    elseif decision == 'replace' then
      replace(prefix, old_id, old, now, args[23])
    end
  end
  local job_id, refusal = L.add.create(job, keys[6])
  if refusal then
    return refusal
  end
  redis.call('HSET', keys[1], args[1], job_id .. ':' .. L.numbers.text(now))
  keep_until(prefix, args[1], now + window)
  L.add.announce(job, args[23])
  return job_id
end

redis.register_function('glidemq_dedup', dedup)
