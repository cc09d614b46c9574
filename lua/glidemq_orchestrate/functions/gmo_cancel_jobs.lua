-- gmo_cancel_jobs: end jobs that belong to no flow, unless others that wait for them would wait for ever.
-- KEYS  1 id counter
-- ARGS  1 now_ms  2 1 = the jobs that wait for them, too   then at most 100 ids of jobs
-- REPLY {word, ...}; ok, or more = repeat the call, as none cancels more than 25 jobs; then pairs of job id and word,
--       those of dependents first: cancelled; left = cancelled, but its stream entry was not in its expected position;
--       flagged = it runs, and its worker stops it; ended; unknown. Otherwise nothing was
--       changed: flow and a job: it is a node; waits, a job and a job: the second, not in the list, or in another queue,
--       waits for the first; many: more than 200 jobs would be cancelled
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS those of gmo_revoke_job for each job. Idempotent.
-- EVENT revoked for each job
local MAX_JOBS, FIRST, MAX_IN_ALL, MAX_EDGES, SLICE = 100, 3, 200, 1000, 25
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

-- The jobs of this slice, and the stream entries of those that wait there.
local function slice(prefix, c, words)
  local jobs, waiting = {}, {}
  for i = #c.ids, 1, -1 do
    local job_id = c.ids[i]
    local job = not words[job_id] and L.jobs.read(prefix, job_id)
    if job and job.state == 'active' and job.revoked == '1' then
      words[job_id] = 'flagged'
    elseif job then
      jobs[#jobs + 1] = job
      job.id = job_id
      if job.state == 'waiting' and job.lifo ~= '1' and L.numbers.int(job.priority, 0) == 0 then
        waiting[#waiting + 1] = { job_id, L.numbers.int(job.timestamp, 0) }
      end
    end
    if #jobs == SLICE then
      return jobs, L.stream.locate(prefix .. 'stream', waiting), i > 1
    end
  end
  return jobs, L.stream.locate(prefix .. 'stream', waiting), false
end

local function cancel(prefix, c, words, now)
  local jobs, entries, is_more = slice(prefix, c, words)
  local reply = { is_more and 'more' or 'ok' }
  for _, job in ipairs(jobs) do
    local word = L.revoking.job(prefix, job.id, job, now, entries[job.id], #jobs > 1 and -1 or 0)
    words[job.id] = word == 'revoked' and 'cancelled' or word
  end
  for i = #c.ids, 1, -1 do
    local job_id = c.ids[i]
    if words[job_id] then
      reply[#reply + 1] = job_id
      reply[#reply + 1] = words[job_id]
    end
  end
  return reply
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
  return cancel(prefix, c, words, now)
end

redis.register_function { function_name = 'gmo_cancel_jobs', callback = cancel_jobs, flags = { 'allow-oom' } }
