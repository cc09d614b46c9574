-- gmo_take_back: take a running job from its worker, without waiting for the end of its lease.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 group  4 how long its worker may still run it, ms (optional)
-- REPLY {word, worker}: taken; asked = it will be taken with a heartbeat after that time; or, and nothing was changed: foreign = none of our workers holds it; its state
-- ERROR GMO_JOB_NOT_FOUND
-- EFFECTS the job goes back to where it came from; that costs no attempt. Later calls of its attempt are refused, and its
--       worker's next heartbeat shows that the lease is lost. A line in the log of the job names the worker. With a
--       time for the worker, the field gmo:until; see losses.lua.
-- EVENT stalled
local function holds(prefix, group, job_id, entry_id, holder)
  if entry_id == '' then
    return redis.call('ZSCORE', prefix .. 'gmo:list-held', job_id) and true
  end
  local row = redis.pcall('XPENDING', prefix .. 'stream', group, entry_id, entry_id, 1)[1]
  return type(row) == 'table' and row[2] == holder
end

local function take_back(keys, args)
  local now, job_id = tonumber(args[1]), args[2]
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local job = L.jobs.read(prefix, job_id)
  if not job or not job.state then
    return L.lease.missing(keys[1], job_id)
  elseif not now then
    return redis.error_reply('GMO_BAD_CALL gmo_take_back: the arguments are not valid')
  elseif job.state ~= 'active' then
    return { job.state, '' }
  end
  local entry_id, holder = redis.call('HGET', keys[1], 'gmo:entry'), L.losses.holder(prefix, job_id, '')
  if not entry_id or holder == '' or not holds(prefix, args[3], job_id, entry_id, holder) then
    return { 'foreign', '' }
  end
  local grace = L.numbers.int(args[4], 0)
  if grace > 0 then
    redis.call('HSET', keys[1], 'gmo:until', L.numbers.text(now + grace) .. ' ' .. redis.call('HGET', keys[1], 'gmo:token'))
    return { 'asked', holder }
  end
  local r = { prefix = prefix, group = args[3], now = now }
  L.losses.give_away(r, holder, { id = job_id, entry = entry_id, job = job })
  return { 'taken', holder }
end

redis.register_function { function_name = 'gmo_take_back', callback = take_back, flags = { 'allow-oom' } }
