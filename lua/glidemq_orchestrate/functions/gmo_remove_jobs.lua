-- gmo_remove_jobs: delete jobs with all their data.
-- KEYS  1 id counter
-- ARGS  1 now_ms  2 event: removed (one for each job), or a name for one event with the count as its job id
--       then for each job, at most 200: job id, id of its stream entry ('' = unknown; for a node of a portable flow,
--       whose record may be in another slot: ! = its flow has ended, - = it was removed)
-- REPLY {{a word for each job}, {member, parent, ...}}; the words: removed; left = removed, but its stream entry is
--       unknown and, for a single job, not in its expected position; missing; flow = not removed, as it is a node of a
--       flow that has not ended; node = the same for a node of a portable flow that may not have ended; message = not
--       cleaned, as not every subscription has handled it; child = not cleaned, as an open job may read its result. The
--       members are unfinished removed jobs, each with a job of another queue that waits for it.
-- ERROR GMO_BAD_CALL. Nothing was changed.
-- EFFECTS the definition of a node stays (jobs.lua). A missing job is removed from the sorted sets too. For a waiting
--   job of this queue, a removed dependency counts as done. The children of a removed job continue alone.
-- EVENT removed, or the one named, with the count; active for a parent that becomes ready
local MAX_JOBS = 200

local ENDED = { completed = true, failed = true }
local WITHOUT_ENTRY = { ['!'] = 'ended', ['-'] = 'gone' }

-- Whether the job is a node of a flow that has not ended.
local function is_in_open_flow(prefix, job_id)
  local flow = L.record.of_job(prefix, job_id)
  if not flow then
    return false
  end
  local state = redis.call('HGET', L.record.key(flow.home, flow.id), 'state')
  return state == 'running' or state == 'staging'
end

-- The refs of the jobs that wait for this one: the single parent of a tree, and the parents of a graph.
local function parents_of(prefix, job_id)
  local single = redis.call('HMGET', prefix .. 'job:' .. job_id, 'parentId', 'parentQueue')
  local refs = redis.call('SMEMBERS', prefix .. 'parents:' .. job_id)
  if single[1] and single[2] and single[1] ~= '' and single[2] ~= '' then
    refs[#refs + 1] = prefix:match('^(.*){[^{}]*}:$') .. '{' .. single[2] .. '}:' .. single[1]
  end
  return refs
end

-- Notifies the parents in this queue; those elsewhere may be in another slot, and the caller notifies them.
local function notify(prefix, job_id, refs, elsewhere)
  local member = prefix .. job_id
  for _, ref in ipairs(refs) do
    local queue, parent_id = L.record.split(ref)
    if queue == prefix then
      L.parents.notify { prefix = prefix, parent_id = parent_id, member = member }
    elseif queue then
      elsewhere[#elsewhere + 1] = member
      elsewhere[#elsewhere + 1] = ref
    end
  end
end

-- Removes one job and returns the word for it.
local function remove(b, job_id, entry_id, limit, elsewhere)
  local prefix, now = b.prefix, b.now
  local is_broken = L.jobs.is_broken(prefix, job_id)
  if is_broken then
    L.jobs.unlink(prefix, job_id)
  end
  local job = L.jobs.read(prefix, job_id)
  if not job then
    for _, name in ipairs({ 'completed', 'failed', 'scheduled', 'suspended' }) do
      redis.call('ZREM', prefix .. name, job_id)
    end
    return is_broken and 'removed' or 'missing'
  elseif is_in_open_flow(prefix, job_id) then
    return 'flow'
  elseif b.event == 'cleaned' and L.messages.is_open(b, job_id) then
    return 'message'
  elseif b.event == 'cleaned' and L.retention.needed(prefix, job_id) == 'child' then
    return 'child'
  end
  local mark = WITHOUT_ENTRY[entry_id]
  if not mark and L.jobs.is_portable(redis.call('HGET', prefix .. 'job:' .. job_id, 'opts')) then
    return 'node'
  end
  entry_id = mark and '' or entry_id
  L.messages.take_out(b, job_id)
  if job.state == 'active' then
    entry_id = redis.call('HGET', prefix .. 'job:' .. job_id, 'gmo:entry') or ''
    redis.call('ZREM', prefix .. 'gmo:list-held', job_id)
  end
  if not mark and redis.call('HEXISTS', prefix .. 'job:' .. job_id, 'gmo:flow') == 0 then
    L.children.leave(prefix, job_id)
  end
  L.keeping.forget(prefix, job_id, job.state)
  local refs = ENDED[job.state] and {} or parents_of(prefix, job_id)
  local is_clean = L.remove.job(prefix, job_id, job, entry_id ~= '' and entry_id or nil, limit, now)
  if mark == 'gone' then
    L.jobs.erase(prefix, job_id)
  end
  notify(prefix, job_id, refs, elsewhere)
  return is_clean and 'removed' or 'left'
end

-- Removes the jobs and returns the reply.
local function remove_all(b, args)
  local prefix, words, elsewhere, count, limit = b.prefix, {}, {}, 0, #args == 4 and 0 or -1
  for i = 3, #args, 2 do
    local word = remove(b, args[i], args[i + 1], limit, elsewhere)
    words[#words + 1] = word
    if word == 'removed' or word == 'left' then
      count = count + 1
      if args[2] == 'removed' then
        L.events.emit(prefix .. 'events', 'removed', args[i])
      end
    end
  end
  if count > 0 and args[2] ~= 'removed' then
    L.events.emit(prefix .. 'events', args[2], L.numbers.text(count))
  end
  return { words, elsewhere }
end

local function remove_jobs(keys, args)
  local prefix, now = L.hashes.prefix(keys[1], 'id'), tonumber(args[1])
  if not now or #args % 2 == 1 or #args > 2 + 2 * MAX_JOBS then
    return redis.error_reply('GMO_BAD_CALL gmo_remove_jobs: the arguments are not valid')
  end
  local b = { prefix = prefix, stream = prefix .. 'stream', now = now, event = args[2] }
  return L.tags.together(remove_all, b, args)
end

redis.register_function { function_name = 'gmo_remove_jobs', callback = remove_jobs, flags = { 'allow-oom' } }
