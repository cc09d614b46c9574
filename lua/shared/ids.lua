-- ids: job ids. Automatic ids count up in `<prefix>id`; custom ids are kept as they are.

local M = {}
L.ids = M

local MAX_PROBES = 1000

-- A hash without these fields is not a job: it is a late write of a worker, or the remains of a node.
function M.exists(prefix, job_id)
  local v = redis.pcall('HMGET', prefix .. 'job:' .. job_id, 'state', 'id', 'name')
  return (v.err or v[1] or v[2] or v[3]) and true or false
end

-- Deletes possible late writes under the id of a new job.
function M.clear(prefix, job_id)
  redis.call('UNLINK', prefix .. 'job:' .. job_id, prefix .. 'log:' .. job_id, prefix .. 'jstream:' .. job_id,
    prefix .. 'signals:' .. job_id)
end

function M.auto(prefix)
  return L.numbers.fresh_text(redis.call('INCR', prefix .. 'id'))
end

-- The next automatic id without a job and whose key is not in `taken`; nil after 1000 collisions.
function M.probe(prefix, taken)
  for _ = 1, MAX_PROBES do
    local job_id = M.auto(prefix)
    if not (taken and taken[prefix .. 'job:' .. job_id]) and not M.exists(prefix, job_id) then
      return job_id
    end
  end
  return nil
end

-- Keeps automatic ids above a custom id made of digits, unless INCR could not continue from it.
function M.advance(prefix, custom_id)
  if not string.find(custom_id, '^%d+$') then
    return
  end
  local value = tonumber(custom_id)
  if value <= 0 or value >= L.numbers.EXACT then
    return
  end
  local key = prefix .. 'id'
  if value > L.numbers.int(redis.call('GET', key), 0) then
    redis.call('SET', key, L.numbers.text(value))
  end
end

-- The id of a new job, or nil when the custom id is taken.
function M.allocate(prefix, custom_id)
  if not custom_id or custom_id == '' then
    return M.auto(prefix)
  end
  if M.exists(prefix, custom_id) then
    return nil
  end
  M.clear(prefix, custom_id)
  M.advance(prefix, custom_id)
  return custom_id
end
