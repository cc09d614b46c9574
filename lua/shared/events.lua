-- events: the log of a queue, trimmed to about 1000 entries.

local M = {}
L.events = M

function M.emit(events_key, event, job_id, ...)
  redis.call('XADD', events_key, 'MAXLEN', '~', '1000', '*', 'event', event, 'jobId', job_id, ...)
end
