-- stream: entries of ready jobs. An entry holds `jobId`, `name` and, for a broadcast retry, `retryGroup`.

local M = {}
L.stream = M

local FIRST_PAGE, PAGE = 16, 1000
-- How many ms the clock of a client may be ahead, and how many entries to search near the expected time of one job, and
-- of several.
local SKEW, NEAR_ENTRIES, MANY_ENTRIES = 10, 1000, 2000

-- `name` may be nil or false when the job has none.
function M.append(stream_key, job_id, name, retry_group)
  if retry_group and retry_group ~= '' then
    return redis.call('XADD', stream_key, '*', 'jobId', job_id, 'name', name or '', 'retryGroup', retry_group)
  end
  return redis.call('XADD', stream_key, '*', 'jobId', job_id, 'name', name or '')
end

-- Broadcast entries stay, since other subscriptions still read them.
function M.ack(stream_key, group, entry_id, broadcast)
  if not entry_id or entry_id == '' then
    return
  end
  redis.pcall('XACK', stream_key, group, entry_id)
  if not broadcast then
    redis.call('XDEL', stream_key, entry_id)
  end
end

-- The job id in the field list of an entry, or nil.
function M.job_id(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'jobId' then
      return fields[i + 1]
    end
  end
  return nil
end

-- Calls `visit(entry_id, job_id or nil)` in order until it returns true; true when it did.
-- Begins at entry id `from` (nil = the oldest) and visits about `limit` entries at most (nil = all).
-- Pages grow: most searches end early.
function M.each(stream_key, visit, limit, from)
  local size, seen = FIRST_PAGE, 0
  from = from or '-'
  while not limit or seen < limit do
    local page = redis.call('XRANGE', stream_key, from, '+', 'COUNT', size)
    for _, entry in ipairs(page) do
      if visit(entry[1], M.job_id(entry[2])) then
        return true
      end
    end
    if #page < size then
      return false
    end
    from, seen = '(' .. page[size][1], seen + size
    size = math.min(size * 4, PAGE)
  end
  return false
end

-- The stream entries of several waiting jobs, as a table by job id, without those that are not near their expected
-- positions. `jobs`: pairs of a job id and when the job was created. One search finds jobs that were added together.
function M.locate(stream_key, jobs)
  local found, wanted, left, last = {}, {}, MANY_ENTRIES, nil
  for _, job in ipairs(jobs) do
    wanted[job[1]] = true
  end
  table.sort(jobs, function(a, b)
    return a[2] < b[2]
  end)
  for _, job in ipairs(jobs) do
    local near = math.max(job[2] - SKEW, 0)
    if not found[job[1]] and left > 0 and near < L.numbers.EXACT then
      local is_past = last and tonumber(string.match(last, '^%d+')) >= near
      M.each(stream_key, function(entry_id, job_id)
        last, left = entry_id, left - 1
        if wanted[job_id] and not found[job_id] then
          found[job_id] = entry_id
        end
        return left <= 0 or job_id == job[1]
      end, left, is_past and '(' .. last or L.numbers.text(near))
    end
  end
  return found
end

-- Acknowledges and deletes the first entry of the job; false when there is none. Entry ids are times, so the
-- search begins where the entry of a job created at `near` should be, and only then covers the stream from its start,
-- up to `limit` entries. An entry appended much later, for example after a retry, is only found by the full search: the
-- wire has no record of its position.
function M.remove_job(stream_key, group, job_id, near, limit)
  local function is_found(entry_id, found)
    if found ~= job_id then
      return false
    end
    M.ack(stream_key, group, entry_id, false)
    return true
  end
  near = math.floor(L.numbers.int(near, 0)) - SKEW
  if near > 0 and near < L.numbers.EXACT then
    if M.each(stream_key, is_found, NEAR_ENTRIES, L.numbers.text(near)) then
      return true
    end
  end
  return limit ~= 0 and M.each(stream_key, is_found, limit)
end
