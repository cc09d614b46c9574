-- stream: entries of ready jobs. An entry holds `jobId`, `name` and, for a broadcast retry, `retryGroup`.

local M = {}
L.stream = M

local PAGE = 1000

-- `name` may be nil or false when the job has none.
function M.append(stream_key, job_id, name, retry_group)
  if retry_group and retry_group ~= '' then
    return redis.call('XADD', stream_key, '*', 'jobId', job_id, 'name', name or '', 'retryGroup', retry_group)
  end
  return redis.call('XADD', stream_key, '*', 'jobId', job_id, 'name', name or '')
end

-- Broadcast entries stay: other subscriptions still read them.
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
-- With `max_pages` the search ends after that many pages of 1000 entries.
function M.each(stream_key, visit, max_pages)
  local from, pages = '-', 0
  while not max_pages or pages < max_pages do
    local page = redis.call('XRANGE', stream_key, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      if visit(entry[1], M.job_id(entry[2])) then
        return true
      end
    end
    if #page < PAGE then
      return false
    end
    from, pages = '(' .. page[PAGE][1], pages + 1
  end
  return false
end

-- Acknowledges and deletes the first entry of the job; false when there is none within `max_pages`.
function M.remove_job(stream_key, group, job_id, max_pages)
  return M.each(stream_key, function(entry_id, found)
    if found ~= job_id then
      return false
    end
    M.ack(stream_key, group, entry_id, false)
    return true
  end, max_pages)
end
