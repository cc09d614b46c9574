-- Open nodes that would never end: their job was removed, or is in no place where a worker would find it.
L.open_nodes = {}

local PUT_BACK, REVOKED, LIST_SEARCH = 5, 50, 10000

-- A text that changes with every step in the life of a job, and the fields; empty for a missing job, or one with only
-- fields written by a late worker.
local function trace(job_key)
  local fields = redis.call('HMGET', job_key, 'state', 'processedOn', 'lastActive', 'attemptsMade', 'stalledCount',
    'gmo:entry', 'gmo:token', 'gmo:flow', 'activeSource', 'revoked', 'gmo:removed', 'gmo:array', 'gmo:element')
  if not (fields[8] or fields[13]) or not fields[1] or fields[11] then
    return ''
  end
  for i = 1, #fields do
    fields[i] = fields[i] or ''
  end
  return table.concat(fields, '|', 1, 7), fields
end

-- Requeues a job in the stream; a job that a worker took from a list releases its slot.
local function put_back(prefix, job_id)
  local job_key, job = prefix .. 'job:' .. job_id, L.jobs.read(prefix, job_id)
  if job.state == 'active' and L.list_active.is_source(job) then
    L.list_active.release(prefix .. 'list-active')
    redis.call('ZREM', prefix .. 'gmo:list-held', job_id)
  end
  local entry = L.stream.append(prefix .. 'stream', job_id, redis.call('HGET', job_key, 'name'))
  redis.call('HDEL', job_key, 'gmo:token', 'processedOn', 'lastActive')
  redis.call('HSET', job_key, 'state', 'waiting', 'gmo:entry', entry)
end

L.open_nodes.PUT_BACK = PUT_BACK
L.open_nodes.REVOKED = REVOKED
L.open_nodes.LIST_SEARCH = LIST_SEARCH
L.open_nodes.trace = trace
L.open_nodes.put_back = put_back
