-- fetch: makes ready jobs active for a worker. Part of gmo_finish_and_fetch.
-- First the priority list, then the LIFO list, then the stream. Jobs from a list are pending in no stream:
-- <prefix>gmo:list-held (zset: job id -> activation time) lists those of our workers, to be reclaimed without a scan.
L.fetch = {}
local TRIES = 3

-- The fields in a row of the reply after job id, entry id and processedOn; after them, the fields that decide.
local COLUMNS = { 'name', 'data', 'opts', 'attemptsMade', 'gmo:flow', 'gmo:node', 'signals', 'fallbackIndex',
  'budgetKey' }
local SHOWN = #COLUMNS
local DECIDING = { 'state', 'revoked', 'expireAt', 'groupKey', 'lifo', 'priority', 'activeSource', 'gmo:epoch',
  'gmo:suspect', 'gmo:history', 'gmo:array' }
local STATE, REVOKED, EXPIRE, GROUP, LIFO, PRIORITY, SOURCE, EPOCH, SUSPECT, HISTORY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local ARRAY, OPTIONS, NONE = 11, 3, {}
local function read(key)
  return redis.call('HMGET', key, unpack(COLUMNS))
end

-- The same of a job that has the ten fields of a new job and no others: to look for each field that it lacks would cost
-- a tenth of the whole call. nil for any other job.
local function read_new(key)
  if redis.call('HLEN', key) ~= 10 then
    return nil
  end
  local v = redis.call('HMGET', key, 'name', 'data', 'opts', 'attemptsMade', 'state', 'priority', 'id', 'timestamp',
    'delay', 'maxAttempts')
  if not (v[1] and v[2] and v[3] and v[4] and v[5] and v[6] and v[7] and v[8] and v[9] and v[10]) then
    return nil
  end
  local state, priority = v[5], v[6]
  v[5], v[6], v[7], v[8], v[9], v[SHOWN + STATE] = false, false, false, false, false, state
  v[SHOWN + PRIORITY] = priority ~= '0' and priority or nil
  return v
end

-- Adds the row of a started job to the reply. `given`: its inputs, see inputs.lua; `ahead`: '+' if its handler does not
-- begin at once, see losses.lua.
local function add_row(x, job_id, entry_id, v, started, epoch, ahead, given, element)
  x.jobs[#x.jobs + 1] = { job_id, entry_id, started, v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], given, epoch,
    v[SHOWN + SUSPECT] or false, ahead, element }
end

L.fetch.read, L.fetch.SHOWN = read, SHOWN

-- Makes the job active with the token of this attempt; returns the number of the activation.
local function mark(x, key, job_id, entry_id, v, at, ahead)
  local epoch = L.lease.next_epoch(x, v[at + EPOCH])
  local more = NONE
  if entry_id ~= '' and (v[at + LIFO] == '1' or L.numbers.int(v[at + PRIORITY], 0) > 0) then
    more = { 'activeSource', 'stream' }
  elseif v[at + SOURCE] then
    redis.call('HDEL', key, 'activeSource')
  end
  if v[at + HISTORY] or L.history.is_wanted(v[OPTIONS]) then
    more = { 'gmo:history', L.history.with(v[at + HISTORY], x.now_text, 'active', x.consumer), unpack(more) }
  end
  redis.call('HSET', key, 'state', 'active', 'processedOn', x.now_text, 'lastActive', x.now_text, 'gmo:token',
    x.token .. ahead, 'gmo:entry', entry_id, 'gmo:epoch', epoch, unpack(more))
  if entry_id == '' then
    redis.call('INCR', x.prefix .. 'list-active')
    redis.call('ZADD', x.prefix .. 'gmo:list-held', x.now, job_id)
    L.events.emit(x.events, 'active', job_id)
  end
  return epoch
end

-- Whether one of our attempts holds the active job by another entry than this one, or from a list.
local function is_held_otherwise(x, job_id, entry_id, held)
  if not held or held == entry_id then
    return false
  elseif held == '' then
    return redis.call('ZSCORE', x.prefix .. 'gmo:list-held', job_id) and true or false
  end
  return #redis.call('XPENDING', x.stream, x.group, held, held, 1) > 0
end

-- Removes an entry whose job is not waiting. The entry of a running job stays: gmo_reclaim decides on it.
local function drop_entry(x, key, job_id, entry_id, state)
  if state == 'active' and entry_id ~= ''
    and not is_held_otherwise(x, job_id, entry_id, redis.call('HGET', key, 'gmo:entry')) then
    return
  end
  L.stream.ack(x.stream, x.group, entry_id, false)
end

-- Starts a job if it may start.
local function begin(x, job_id, entry_id)
  local key, at = x.prefix .. 'job:' .. job_id, SHOWN
  local v = not x.has_others and read_new(key)
  if not v then
    x.has_others, v = true, read(key) -- the next one is probably no new job either, such as a node of a flow
  end
  if v[at + STATE] ~= 'waiting' then
    return drop_entry(x, key, job_id, entry_id, v[at + STATE])
  end
  if v[at + ARRAY] then -- a user made it ready, like any other job
    L.stream.ack(x.stream, x.group, entry_id, false)
    return L.arrays.open(x.prefix, job_id, 0, x.now)
  end
  if v[at + REVOKED] == '1' or v[at + EXPIRE] or (v[at + GROUP] and v[at + GROUP] ~= '') then
    if not L.admission.pass(x, job_id, entry_id) then
      return nil
    end
  end
  local ahead = x.starts and (v[at + SUSPECT] or #x.jobs >= x.starts) and '+' or ''
  local epoch = mark(x, key, job_id, entry_id, v, at, ahead)
  local given, runs_again, element = L.inputs.of(x, job_id, v)
  if runs_again and L.inputs.wait(x, job_id, entry_id, runs_again) then
    return nil
  end
  return add_row(x, job_id, entry_id, v, x.now_text, epoch, ahead, given, element)
end

-- Starts a job. One that cannot start, for example because its key is not a hash, must not block the others.
local function try(x, job_id, entry_id)
  local is_fine, why = pcall(begin, x, job_id, entry_id)
  if not is_fine then
    if L.jobs.bury(x.prefix, job_id, x.now) then
      L.stream.ack(x.stream, x.group, entry_id, false)
    end
    x.troubles[#x.troubles + 1] = job_id .. ': ' .. (type(why) == 'table' and why.err or tostring(why))
  end
end

-- Starts jobs from a list until there are `count`.
local function from_list(x, list_key, count)
  for _, job_id in ipairs(count > #x.jobs and redis.call('RPOP', list_key, count - #x.jobs) or {}) do
    try(x, job_id, '')
  end
end

L.fetch.from_list = from_list

-- Reads new entries. Creates the workers' group if it is missing, as after FLUSHDB.
local function read_stream(x, count)
  local words = { 'GROUP', x.group, x.consumer, 'COUNT', count, 'STREAMS', x.stream, '>' }
  local reply = redis.pcall('XREADGROUP', unpack(words))
  if reply and reply.err and reply.err:find('NOGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', x.stream, x.group, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', unpack(words))
  elseif reply and reply.err then -- such as a missing right
    error(reply)
  end
  return reply
end

-- Fills x.jobs up to `count`; x.is_plain: all ready jobs are in the stream. Returns false when the queue had fewer jobs that may run now.
function L.fetch.jobs(x, count)
  local priority, lifo = x.prefix .. 'priority', x.prefix .. 'lifo'
  if not x.is_plain and redis.call('EXISTS', priority, lifo) > 0 then
    from_list(x, priority, count)
    from_list(x, lifo, count)
  end
  for _ = 1, TRIES do
    local reply = #x.jobs < count and read_stream(x, count - #x.jobs)
    if not reply then
      return #x.jobs >= count
    end
    for _, entry in ipairs(reply[1][2]) do
      local job_id = L.stream.job_id(entry[2])
      if job_id then
        try(x, job_id, entry[1])
      else
        L.stream.ack(x.stream, x.group, entry[1], false)
      end
    end
  end
  return true
end

-- Adds the jobs that the worker started with this token again: their reply was lost.
function L.fetch.again(x)
  local function check(job_id, entry_id)
    local key = x.prefix .. 'job:' .. job_id
    local v, held = read(key), redis.call('HMGET', key, 'gmo:token', 'gmo:entry', 'processedOn')
    local ahead = held[1] == x.token .. '+' and '+' or ''
    local is_ours = v[SHOWN + STATE] == 'active' and held[1] == x.token .. ahead and held[2] == entry_id
    if is_ours and redis.call('HEXISTS', key, 'gmo:slice') == 1 then
      L.slices.again(x, job_id, held[1], v[SHOWN + SUSPECT], held[3], v[SHOWN + EPOCH])
    elseif is_ours then
      local given, _, element = L.inputs.of(x, job_id, v)
      add_row(x, job_id, entry_id, v, held[3], v[SHOWN + EPOCH], ahead, given, element)
    end
  end
  local pending = redis.pcall('XPENDING', x.stream, x.group, '-', '+', 1000, x.consumer)
  for _, entry in ipairs(pending.err and {} or pending) do -- no group: the database was flushed
    local found = redis.call('XRANGE', x.stream, entry[1], entry[1])[1]
    local job_id = found and L.stream.job_id(found[2])
    if job_id then
      check(job_id, entry[1])
    end
  end
  for _, job_id in ipairs(redis.call('ZRANGE', x.prefix .. 'gmo:list-held', -1000, -1)) do
    check(job_id, '')
  end
end
for i = 1, #DECIDING do COLUMNS[SHOWN + i] = DECIDING[i] end
