-- dependents: how a node ended, or that it runs again, is told to its dependents; to more than SLICE of them in slices.
-- Whoever was told moves from glide-mq's `parents` of the node to the set <prefix>gmo:notified:<job id>, and back when nobody
-- is left: what is still to be done is what is still there, whichever server process goes on.
-- Rows of <flow>:notifying: "<pass>\n<outcome>\n<cause>\n<on_failure>", pass `tell`, or `back` while all go back first,
-- because telling begins anew, or `end` when all know.
L.dependents = {}
local SLICE, BACK_SLICE = 50, 500
local function notified_key(prefix, job_id)
  return prefix .. 'gmo:notified:' .. job_id
end

-- How many dependents a node has, and whether they are few enough, and together, to be told at once.
function L.dependents.count(prefix, job_id)
  local count = redis.call('SCARD', prefix .. 'parents:' .. job_id)
  if redis.call('EXISTS', notified_key(prefix, job_id)) == 1 then
    return count + redis.call('SCARD', notified_key(prefix, job_id)), false
  end
  return count, count <= SLICE
end

-- Dependents are to be told in slices, all of them, whatever was being told before.
function L.dependents.begin(key, ref, told)
  local prefix, job_id = L.record.split(ref)
  local pass = redis.call('EXISTS', notified_key(prefix, job_id)) == 1 and 'back' or 'tell'
  local row = table.concat({ pass, told.outcome, told.cause or '', told.on_failure or '' }, '\n')
  redis.call('HSET', key .. ':notifying', ref, row)
end

-- Tells the dependents of a job, whichever queue they are in, how it ended. Returns true when gmo_advance_flow has to
-- go on: they are too many, or one cannot run. told: see rules.lua; count: how many there are, where that is known to
-- be few.
function L.dependents.dependents(flow, prefix, job_id, now, told, count)
  local key, ref = L.record.key(flow.home, flow.id), prefix .. job_id
  local is_small = count and count <= SLICE
  if not is_small then
    count, is_small = L.dependents.count(prefix, job_id)
  end
  if not is_small then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
    L.dependents.begin(key, ref, told)
    return true
  end
  local is_unfinished = false
  for _, dependent in ipairs(count > 0 and redis.call('SMEMBERS', prefix .. 'parents:' .. job_id) or {}) do
    is_unfinished = L.release.notify(flow, key, ref, dependent, told, now) or is_unfinished
  end
  return is_unfinished
end

-- Whether what is being told is still so: a retry may have undone a failure in the meantime.
local function is_current(prefix, job_id, outcome)
  return outcome ~= 'failed' or redis.call('HGET', prefix .. 'job:' .. job_id, 'state') == 'failed'
end

-- A slice of the way back; returns whether all are back. Of a job that is gone nobody is a dependent any more.
local function give_back(prefix, job_id)
  if redis.call('EXISTS', prefix .. 'job:' .. job_id) == 0 then
    L.dependents.forget(prefix, job_id)
    return true
  end
  local members = redis.call('SPOP', notified_key(prefix, job_id), BACK_SLICE)
  if #members > 0 then
    redis.call('SADD', prefix .. 'parents:' .. job_id, unpack(members))
  end
  return #members < BACK_SLICE
end

-- A slice of those who do not know yet; returns whether all know now.
local function notify_some(flow, key, ref, told, now)
  local prefix, job_id = L.record.split(ref)
  local parents, knowing = prefix .. 'parents:' .. job_id, {}
  local dooms = told.outcome == 'again' and L.rerun.dooms(key)
  for _, dependent in ipairs(redis.call('SPOP', parents, SLICE)) do
    if told.outcome ~= 'again' then
      L.release.notify(flow, key, ref, dependent, told, now)
      knowing[#knowing + 1] = dependent
    elseif L.rerun.take_back(ref, dependent, dooms) then
      knowing[#knowing + 1] = dependent
    end
  end
  if #knowing > 0 then
    redis.call('SADD', notified_key(prefix, job_id), unpack(knowing))
  end
  return redis.call('EXISTS', parents) == 0
end

-- Goes on with one job that has many dependents; returns how many such jobs are left.
function L.dependents.go_on(flow, key, now)
  local telling = key .. ':notifying'
  local ref = redis.call('HRANDFIELD', telling)
  if not ref then
    return 0
  end
  local row = redis.call('HGET', telling, ref)
  local pass, outcome, cause, on_failure = row:match('^(%w+)\n(%a+)\n([^\n]*)\n(.*)$')
  local prefix, job_id = L.record.split(ref)
  if pass ~= 'back' and pass ~= 'end' and is_current(prefix, job_id, outcome) then
    if notify_some(flow, key, ref,
      { outcome = outcome, cause = cause, on_failure = on_failure ~= '' and on_failure or nil }, now) then
      redis.call('HSET', telling, ref, 'end' .. row:sub(#pass + 1))
    end
  elseif give_back(prefix, job_id) then
    if pass == 'back' then
      redis.call('HSET', telling, ref, 'tell' .. row:sub(#pass + 1))
    else
      redis.call('HDEL', telling, ref)
      if outcome == 'again' then
        L.rerun.told(key, ref, L.rerun.dooms(key))
      end
    end
  end
  return redis.call('HLEN', telling)
end

-- The job goes, and what belongs to the telling with it.
function L.dependents.forget(prefix, job_id)
  redis.call('UNLINK', notified_key(prefix, job_id))
end
