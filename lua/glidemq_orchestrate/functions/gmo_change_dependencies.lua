-- gmo_change_dependencies: make a job that has not begun wait for other jobs of its queue, or no longer wait for them.
-- KEYS  1 job hash
-- ARGS  1 now_ms  2 job id  3 on | off   then at most 100 ids of jobs; off without ids: all
-- REPLY {word, a word for each id}; the first: ok; more = ok, but not all were removed yet: repeat the call; left = ok,
--       but the stream entry of the job was not in its expected position; flow = it is a node; ordered = it has an
--       ordering key; cycle: one of these waits for it, or may; or the state that does not allow this: nothing was
--       changed. The others: on: added, same, ended, unknown; off: removed, unknown
-- ERROR GMO_JOB_NOT_FOUND; GMO_BAD_CALL. Nothing was changed.
-- EFFECTS a job with an open dependency waits in the state waiting-children; afterwards it returns to its place: with
--       its priority, and delayed until the time when it was due. Idempotent.
-- EVENT waiting-children; active
local MAX_JOBS, FIRST, SLICE = 100, 4, 200

-- Whether one of the new dependencies waits for the job, or may.
local function makes_cycle(prefix, job_id, args)
  for i = FIRST, #args do
    if L.edges.reaches(prefix, args[i], job_id) ~= false then
      return true
    end
  end
  return false
end

local function on(prefix, job_id, state, args, words)
  if makes_cycle(prefix, job_id, args) then
    return 'cycle'
  end
  for i = FIRST, #args do
    words[#words + 1] = L.edges.add(prefix, job_id, args[i])
  end
  return L.edges.hold(prefix, job_id, state) and 'ok' or 'left'
end

local function off(prefix, job_id, args, words)
  local members = {}
  for i = FIRST, #args do
    members[#members + 1] = prefix .. args[i]
  end
  if #members == 0 then
    members = redis.call('SRANDMEMBER', prefix .. 'deps:' .. job_id, SLICE)
  end
  for _, member in ipairs(members) do
    words[#words + 1] = L.edges.remove(prefix, job_id, member)
  end
  local is_done = L.edges.release(prefix, job_id) or #args >= FIRST
  return not is_done and #members == SLICE and 'more' or 'ok'
end

local function change_dependencies(keys, args)
  local job_id, what, words = args[2], args[3], {}
  if not tonumber(args[1]) or (what ~= 'on' and what ~= 'off') or #args - FIRST + 1 > MAX_JOBS then
    return redis.error_reply('GMO_BAD_CALL gmo_change_dependencies: the arguments are not valid')
  end
  local prefix = L.hashes.prefix(keys[1], 'job:' .. job_id)
  local state, is_refused = L.edges.refusal(prefix, job_id)
  if not state then
    return L.lease.missing(keys[1], job_id)
  elseif is_refused or (what == 'off' and state ~= 'waiting-children') then
    return { state, {} }
  end
  local word = what == 'on' and on(prefix, job_id, state, args, words) or off(prefix, job_id, args, words)
  return { word, words }
end

redis.register_function('gmo_change_dependencies', change_dependencies)
