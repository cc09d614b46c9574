-- gmo_renew: renew the leases of all attempts of a worker, on behalf of a worker that cannot.
-- KEYS  1 stream
-- ARGS  1 now_ms  2 group  3 worker  4 where to continue ('' = at the start)
-- REPLY {how many leases were renewed, where to continue or ''}
-- EFFECTS lastActive of at most 100 active jobs with a token of that worker: first those pending in the stream, then
--   those taken from a list. For a subscription: its held entries are idle since now. Idempotent.
local PAGE, WORKERS = 100, 'workers'

local function renew_one(x, job_id)
  local key = x.prefix .. 'job:' .. job_id
  local v = redis.call('HMGET', key, 'state', 'gmo:token', 'gmo:until')
  local is_held = v[1] == 'active' and v[2] and v[2]:sub(1, #x.worker) == x.worker
  if is_held and not (v[3] and L.losses.is_over(x, job_id, v[2], v[3])) then
    redis.call('HSET', key, 'lastActive', L.numbers.text(x.now))
    x.count = x.count + 1
  end
end

-- Renews a page of those in the stream; returns where to continue.
local function renew_pending(x, from)
  local pending = redis.pcall('XPENDING', x.stream, x.group, from, '+', PAGE, x.consumer)
  pending = pending.err and {} or pending -- no group: nothing is pending
  for _, row in ipairs(pending) do
    local found = redis.call('XRANGE', x.stream, row[1], row[1])[1]
    local job_id = found and L.stream.job_id(found[2])
    if job_id and x.group == WORKERS then
      renew_one(x, job_id)
    elseif job_id then
      L.handling.claim(x, row[1])
      x.count = x.count + 1
    end
  end
  return #pending == PAGE and '(' .. pending[PAGE][1] or x.group == WORKERS and '0' or ''
end

-- Renews a page of those from lists; returns where to continue.
local function renew_listed(x, first)
  local listed = redis.call('ZRANGE', x.prefix .. 'gmo:list-held', first, first + PAGE - 1)
  for _, job_id in ipairs(listed) do
    renew_one(x, job_id)
  end
  return #listed == PAGE and L.numbers.text(first + PAGE) or ''
end

local function renew(keys, args)
  local x = { prefix = L.hashes.prefix(keys[1], 'stream'), stream = keys[1], now = tonumber(args[1]) or 0, group = args[2],
    consumer = args[3], worker = args[3] .. '/', count = 0 }
  local from = args[4] ~= '' and args[4] or '-'
  local listed = from:find('^%d+$') and tonumber(from)
  local goes_on = listed and renew_listed(x, listed) or not listed and renew_pending(x, from) or ''
  return { x.count, goes_on }
end

redis.register_function { function_name = 'gmo_renew', callback = renew, flags = { 'allow-oom' } }
