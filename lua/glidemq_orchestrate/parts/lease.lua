-- The lease of an attempt. fetch.lua writes a token that only this attempt has. Later calls of the attempt are accepted
-- only while the job is active with that token and the activation time of the attempt. The time detects Node workers:
-- they write processedOn when they take a job over, but no token.
-- Proof in ARGS of gmo_append, gmo_progress, gmo_grow, gmo_report_usage and gmo_write_messages: 2 job id
-- 3 stream entry id   4 group   5 token   6 processedOn
L.lease = {}
local GRACE, NOTED, APART, MAX = 4000, 1000, 60000, 86400000

-- The name of an attempt: its token and the time of its activation.
function L.lease.attempt(token, processed_on)
  return token .. ' ' .. processed_on
end

-- How many ms a lease lasts: as long as encoded in its holder's id (jobs/attempt.py), and at least as long as that of
-- the checking worker. A worker with short leases must not end those of others. `holder`: '' if unknown.
function L.lease.duration(holder, lock_ms)
  return math.max(lock_ms, math.min(L.numbers.int(holder:match('%-(%d+)ms$'), 0), MAX))
end

-- Whether leases may be ended now. If no worker has checked for as long as a lease lasts, the server was unreachable or
-- there was no worker: all leases have lapsed, and live workers get time to renew theirs. At most once per minute,
-- since some leases are shorter than the time between two checks.
-- <prefix>gmo:supervised: `looked` is the time of the last check, `spared` the time until which no lease is ended.
function L.lease.may_end(prefix, now, lock_ms)
  local place, int, text = prefix .. 'gmo:supervised', L.numbers.int, L.numbers.text
  local v = redis.call('HMGET', place, 'looked', 'spared')
  local looked, spared = int(v[1], now), int(v[2], 0)
  if now - looked > lock_ms and now - spared > APART then
    spared = now + math.min(GRACE, 2 * lock_ms) -- short leases are renewed sooner
    redis.call('HSET', place, 'spared', text(spared))
  end
  if not v[1] or math.abs(now - looked) >= math.min(NOTED, lock_ms / 4) then
    redis.call('HSET', place, 'looked', text(now))
  end
  return now >= spared or spared - now > GRACE -- a clock was set back
end

-- Returns the prefix and the id of the job, or nil and the error reply.
function L.lease.check(keys, args)
  local job_id = args[2]
  local fields = redis.call('HMGET', keys[1], 'state', 'gmo:token', 'processedOn')
  if not fields[1] then
    return nil, redis.error_reply('GMO_STALE job ' .. job_id .. ' was removed')
  end
  if fields[1] ~= 'active' or fields[2] ~= args[5] or fields[3] ~= args[6] then
    return nil, redis.error_reply('GMO_STALE this attempt no longer owns job ' .. job_id .. ', which is ' .. fields[1])
  end
  return { prefix = keys[1]:sub(1, #keys[1] - #('job:' .. job_id)), job_id = job_id }
end

-- The error reply for a missing job, by the key of its hash.
function L.lease.missing(key, job_id)
  local queue = key:match('{([^{}]*)}:job:') or '?'
  return redis.error_reply('GMO_JOB_NOT_FOUND no job ' .. job_id .. ' in queue ' .. queue)
end

-- Returns nil if a job may be written to: from outside (token '') if it exists, by an attempt with its proof. Else the
-- error reply.
function L.lease.refusal(keys, args)
  if args[5] ~= '' then
    local lease, stale = L.lease.check(keys, args)
    return not lease and stale or nil
  end
  return redis.call('HEXISTS', keys[1], 'state') == 0 and L.lease.missing(keys[1], args[2]) or nil
end

-- The number of an activation: it is larger than that of every earlier one of the job. It is the server's time in ms if
-- that is larger than the last number plus one, so that it also grows for a job that replaces another one, as in a
-- later generation of a flow, and when the server has lost the last one. Not x.now: a worker may have read its clock
-- long before the call arrives.
function L.lease.next_epoch(x, last)
  if not x.clock then
    local time = redis.pcall('TIME') -- the user may lack the right to call it
    x.clock = time.err and x.now or tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  local number = L.numbers.int(last, 0)
  if number % 1 ~= 0 or number + 1 >= L.numbers.EXACT then -- it is not one of ours
    number = 0
  end
  return L.numbers.text(math.max(number + 1, x.clock))
end
