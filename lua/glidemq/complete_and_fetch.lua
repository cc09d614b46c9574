-- glidemq_completeAndFetchNext: finish a job and activate the next one.
-- KEYS  1 to 9 as glidemq_complete
-- ARGS  1 jobId  2 entryId  3 returnvalue  4 now  5 group  6 consumer  7 removeMode  8 removeCount
--       9 removeAge (s)  10 depsMember  11 parentId  12 orderingKey hint  13 orderingSeq hint
--       14 groupKey hint  15 broadcast  16 processedOn hint  17 ignored  18 skipEvents  19 skipMetrics
--       (hints: '' = look it up, `__` = known to be absent)
-- REPLY {NEXT_NONE, jobId} | {NEXT_REVOKED, jobId, nextId, entryId}
--       | {NEXT_HASH, jobId, nextId, entryId, field, value, ...}
-- EVENT as glidemq_complete; active when the next job comes from a list

local TRIES = 3
local MAX_UNPACKED = 1000

local function complete(c, keys, args)
  local int = L.numbers.int
  L.finish.complete({
    prefix = c.prefix, job_id = args[1], entry_id = args[2] or '', returnvalue = args[3], now = c.now,
    group = c.group, remove_mode = args[7], remove_count = int(args[8], 0), remove_age = int(args[9], 0),
    parent = L.complete.parent(keys, args[10], args[11]), ordering_key = args[12],
    ordering_seq = args[13] or '', group_key = args[14], broadcast = c.broadcast, processed_on = args[16],
    skip_events = c.skip_events, skip_metrics = c.skip_metrics,
  })
end

local function activate(c, job_id, entry_id)
  return L.activate.job({
    prefix = c.prefix, job_id = job_id, entry_id = entry_id, group = c.group, now = c.now,
    skip_events = c.skip_events, skip_metrics = c.skip_metrics,
  })
end

local function handed_out(c, job_id, entry_id, fields)
  if #fields <= MAX_UNPACKED then
    return { 'NEXT_HASH', c.job_id, job_id, entry_id, unpack(fields) }
  end
  local reply = { 'NEXT_HASH', c.job_id, job_id, entry_id }
  for i = 1, #fields do
    reply[i + 4] = fields[i]
  end
  return reply
end

-- A job of the list that may run now; drops ids of missing, revoked, expired or parked jobs.
local function next_from_list(c, list_key)
  for _ = 1, TRIES do
    local job_id = redis.call('RPOP', list_key)
    if not job_id then
      return nil
    end
    local status, fields = activate(c, job_id, '')
    if not status then
      if not c.skip_events then
        L.events.emit(c.prefix .. 'events', 'active', job_id)
      end
      redis.call('INCR', c.prefix .. 'list-active')
      return handed_out(c, job_id, '', fields)
    end
  end
  return nil
end

-- Most queues have neither list: one check instead of two.
local function next_from_lists(c)
  local priority, lifo = c.prefix .. 'priority', c.prefix .. 'lifo'
  if redis.call('EXISTS', priority, lifo) == 0 then
    return nil
  end
  return next_from_list(c, priority) or next_from_list(c, lifo)
end

local function read_entry(c)
  local reply = redis.call('XREADGROUP', 'GROUP', c.group, c.consumer, 'COUNT', 1, 'STREAMS', c.stream, '>')
  local entry = reply and reply[1] and reply[1][2][1]
  if not entry then
    return nil, nil
  end
  return entry[1], L.stream.job_id(entry[2])
end

local function next_from_stream(c)
  for _ = 1, TRIES do
    local entry_id, job_id = read_entry(c)
    if not job_id then
      return nil
    end
    local status, fields = activate(c, job_id, entry_id)
    if not status then
      return handed_out(c, job_id, entry_id, fields)
    elseif status == 'REVOKED' then
      return { 'NEXT_REVOKED', c.job_id, job_id, entry_id }
    elseif status == '' then
      L.stream.ack(c.stream, c.group, entry_id, false)
    elseif status ~= 'EXPIRED' then
      return nil
    end
  end
  return nil
end

local function complete_and_fetch_next(keys, args)
  local prefix = L.hashes.prefix(keys[4], 'job:' .. args[1])
  local c = {
    prefix = prefix, stream = prefix .. 'stream', job_id = args[1], now = L.numbers.int(args[4], 0),
    group = args[5], consumer = args[6], broadcast = L.numbers.flag(args[15]),
    skip_events = L.numbers.flag(args[18]), skip_metrics = L.numbers.flag(args[19]),
  }
  complete(c, keys, args)
  if c.broadcast then
    return { 'NEXT_NONE', args[1] }
  end
  return next_from_lists(c) or next_from_stream(c) or { 'NEXT_NONE', args[1] }
end

redis.register_function({
  function_name = 'glidemq_completeAndFetchNext', callback = complete_and_fetch_next, flags = { 'allow-oom' },
})
