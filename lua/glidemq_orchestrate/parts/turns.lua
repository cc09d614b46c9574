-- turns: of which open arrays a worker gets slices. Those with a priority come first, in its order; the others take turns,
-- among each other and with jobs. Part of gmo_finish_and_fetch.
L.turns = {}
local ARRAYS, PRIORITIES, BROKEN, BUDGET, NEVER = 8, 64, 60000, L.slices.BUDGET, L.arrays.NEVER
local int = L.numbers.int

-- How many elements run in all open arrays of a queue.
function L.turns.running(prefix)
  local sum = 0
  for _, job_id in ipairs(redis.call('ZRANGE', prefix .. 'gmo:arrays', 0, -1)) do
    sum = sum + int(redis.call('HGET', prefix .. 'gmo:array:' .. job_id, 'running'), 0)
  end
  return sum
end

-- Leases slices of an array until `count` jobs have started, or as many elements as one call may lease.
local function fetch_of(x, job_id, count)
  local a, v = L.arrays.read(x.prefix, job_id), L.fetch.read(x.prefix .. 'job:' .. job_id)
  if not a then -- another client has removed it
    redis.call('ZREM', x.prefix .. 'gmo:array-priorities', job_id)
    return redis.call('ZREM', x.prefix .. 'gmo:arrays', job_id)
  end
  local size, before, given = tonumber(x.sizes[v[1]] or x.sizes['']) or 1, #x.jobs, L.inputs.read(x.prefix, job_id)
  while #x.jobs < count and (x.leased or 0) < BUDGET do
    local ahead = x.starts and #x.jobs >= x.starts and '+' or ''
    local slice = L.slices.lease(x, a, v, size, ahead)
    if not slice then break end
    L.slices.add_row(x, slice, v, given)
  end
  L.arrays.place(a, x.now, #x.jobs > before)
end

-- Whether the call has leased as much as it may.
local function is_full(x, count)
  return #x.jobs >= count or (x.leased or 0) >= BUDGET
end

-- Leases slices of an array until there are `count` jobs. One that cannot be read does not block the others.
local function take(x, job_id, count)
  local is_fine, why = pcall(fetch_of, x, job_id, count)
  if not is_fine then
    redis.call('ZADD', x.prefix .. 'gmo:arrays', L.numbers.text(x.now + BROKEN), job_id)
    x.troubles[#x.troubles + 1] = job_id .. ': ' .. (type(why) == 'table' and why.err or tostring(why))
  end
end

-- The arrays with a priority of which slices can be leased, the next one first: {job id, priority, since when}.
local function prioritized(x)
  local listed, found = redis.call('ZRANGE', x.prefix .. 'gmo:array-priorities', 0, PRIORITIES - 1, 'WITHSCORES'), {}
  for i = 1, #listed, 2 do
    local due = tonumber(redis.call('ZSCORE', x.prefix .. 'gmo:arrays', listed[i]) or NEVER)
    if due <= x.now then
      found[#found + 1] = { listed[i], tonumber(listed[i + 1]), due }
    end
  end
  table.sort(found, function(one, other)
    return one[2] < other[2] or (one[2] == other[2] and one[3] < other[3])
  end)
  return found
end

-- The priority of the next job from the list of those with one; nil without such a job.
local function next_priority(x)
  local job_id = redis.call('LRANGE', x.prefix .. 'priority', -1, -1)[1]
  return job_id and int(redis.pcall('HGET', x.prefix .. 'job:' .. job_id, 'priority'), 0) or nil
end

-- How many of so many places jobs get beside arrays.
function L.turns.half(x, places)
  return places == 1 and x.now % 2 or math.floor(places / 2)
end

-- Starts jobs and slices that have a priority, in its order. Of the same priority, jobs and arrays take turns.
function L.turns.fetch_first(x, count)
  local arrays, at, is_turn = prioritized(x), 1, x.now % 2 == 0
  while not is_full(x, count) do
    local array, own = arrays[at], next_priority(x)
    if not array then
      return L.fetch.from_list(x, x.prefix .. 'priority', count)
    elseif not own or array[2] < own then
      take(x, array[1], count)
      at = at + 1
    elseif array[2] == own and is_turn then
      local before = #x.jobs
      take(x, array[1], before + 1)
      at, is_turn = #x.jobs == before and at + 1 or at, false
    else
      L.fetch.from_list(x, x.prefix .. 'priority', #x.jobs + 1)
      is_turn = true
    end
  end
end

-- Leases slices of open arrays. Returns false if there were no more.
function L.turns.fetch(x, count)
  local ready = redis.call('ZRANGEBYSCORE', x.prefix .. 'gmo:arrays', '-inf', x.now, 'LIMIT', 0, ARRAYS)
  for _, job_id in ipairs(ready) do
    if is_full(x, count) then break end
    take(x, job_id, count)
  end
  return is_full(x, count) or #ready == ARRAYS
end
