-- list_active: the number of active jobs that came from the priority or LIFO list.
-- Such jobs are pending in no stream, so only this counter has them.

local M = {}
L.list_active = M

-- Decrements the counter; never below zero.
function M.release(key)
  if not key or key == '' then
    return
  end
  if L.numbers.int(redis.call('GET', key), 0) > 0 then
    redis.call('DECR', key)
  end
end

-- True when an active job with these fields is counted here.
-- A LIFO or prioritised job that was put back into the stream is activated with `activeSource` `stream`.
function M.is_source(job)
  if job.activeSource == 'stream' then
    return false
  end
  return job.lifo == '1' or L.numbers.int(job.priority, 0) > 0
end
