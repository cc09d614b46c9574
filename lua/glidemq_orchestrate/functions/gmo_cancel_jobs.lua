-- gmo_cancel_jobs: end jobs that belong to no flow, unless others that wait for them would wait for ever.
-- KEYS  1 id counter
-- ARGS  1 now_ms  2 1 = the jobs that wait for them, too   then at most 100 ids of jobs
-- REPLY {word, ...}; ok, then pairs of job id and word, those of dependents first: cancelled; left = cancelled, but its
--       stream entry was not in its expected position; flagged = it runs, and its worker stops it; ended; unknown.
--       Otherwise nothing was changed: flow and a job: it is a node; waits, a job and a job: the second, not in the list,
--       or in another queue, waits for the first; many: more than 200 jobs would be cancelled
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS those of gmo_revoke_job for each job. Idempotent.
-- EVENT revoked for each job
local MAX_JOBS, FIRST, MAX_IN_ALL, MAX_EDGES = 100, 3, 200, 1000
local ENDED = { completed = true, failed = true }

-- Adds the open dependents of a job to the list; without `cascade`, or elsewhere, they must be in it. Returns a refusal.
local function spread(prefix, c, job_id)
  if redis.call('SCARD', prefix .. 'parents:' .. job_id) > MAX_EDGES then
    return { 'many' }
  end
  for _, ref in ipairs(L.edges.dependents(prefix, job_id)) do
    local queue, parent_id = L.record.split(ref)
    if queue ~= prefix or not (c.known[parent_id] or c.cascade) then
      return { 'waits', job_id, queue == prefix and parent_id or ref }
    elseif not c.known[parent_id] then
      c.known[parent_id], c.ids[#c.ids + 1] = true, parent_id
    end
  end
end

-- Checks every job; returns a refusal, or the words of those that are not cancelled.
local function check(prefix, c)
  local words, at = {}, 1
  while c.ids[at] do
    local job_id = c.ids[at]
    local v = redis.call('HMGET', prefix .. 'job:' .. job_id, 'state', 'gmo:flow', 'opts')
    if #c.ids > MAX_IN_ALL then
      return { 'many' }
    elseif not v[1] then
      words[job_id] = 'unknown'
    elseif v[2] or L.jobs.is_portable(v[3]) then
      return { 'flow', job_id }
    elseif ENDED[v[1]] then
      words[job_id] = 'ended'
    else
      local refusal = spread(prefix, c, job_id)
      if refusal then
        return refusal
      end
    end
    at = at + 1
  end
  return nil, words
end

local function cancel_jobs(keys, args)
  local now, c = tonumber(args[1]), { cascade = args[2] == '1', ids = {}, known = {} }
  if not now or #args < FIRST or #args - FIRST + 1 > MAX_JOBS or keys[1]:sub(-3) ~= ':id' then
    return redis.error_reply('GMO_BAD_CALL gmo_cancel_jobs: the arguments are not valid')
  end
  local prefix = L.hashes.prefix(keys[1], 'id')
  for i = FIRST, #args do
    if not c.known[args[i]] then
      c.known[args[i]], c.ids[#c.ids + 1] = true, args[i]
    end
  end
  local refusal, words = check(prefix, c)
  if refusal then
    return refusal
  end
  local reply = { 'ok' }
  for i = #c.ids, 1, -1 do
    local job_id = c.ids[i]
    local word = words[job_id] or L.revoking.job(prefix, job_id, L.jobs.read(prefix, job_id), now)
    reply[#reply + 1] = job_id
    reply[#reply + 1] = word == 'revoked' and 'cancelled' or ENDED[word] and 'ended' or word
  end
  return reply
end

redis.register_function { function_name = 'gmo_cancel_jobs', callback = cancel_jobs, flags = { 'allow-oom' } }
