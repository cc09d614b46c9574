-- events: the log of a queue, trimmed to about 1000 entries. It only wakes who waits: where it cannot be written,
-- because its key is of another type or its ids are used up, the jobs go on all the same.

local M = {}
L.events = M

function M.emit(events_key, event, job_id, ...)
  redis.pcall('XADD', events_key, 'MAXLEN', '~', '1000', '*', 'event', event, 'jobId', job_id, ...)
end
