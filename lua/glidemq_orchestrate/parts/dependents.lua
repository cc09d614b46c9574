-- dependents: notifies the dependents of a node that it has ended or reruns; more than SLICE of them in slices.
-- A notified dependent moves from glide-mq's `parents` of the node to the set <prefix>gmo:notified:<job id>, and all
-- move back when none remains: the progress is in the sets, so any server process can continue.
-- Rows of <flow>:notifying: "<pass>\n<outcome>\n<cause>\n<on_failure>", pass `notify`, or `back` while all move back
-- first because notifying starts again, or `end` when all are notified. Outcome `again`: they forget the node's end,
-- and with the cause `follow` or `late` rerun too.
L.dependents = {}
local SLICE, BACK_SLICE = 50, 500

-- The set of notified dependents.
local function notified_key(prefix, job_id)
  return prefix .. 'gmo:notified:' .. job_id
end

-- How many dependents a node has, and whether they are few enough, and all in one set, to be notified in one call.
function L.dependents.count(prefix, job_id)
  local count = redis.call('SCARD', prefix .. 'parents:' .. job_id)
  if redis.call('EXISTS', notified_key(prefix, job_id)) == 1 then
    return count + redis.call('SCARD', notified_key(prefix, job_id)), false
  end
  return count, count <= SLICE
end

-- Starts notifying all dependents in slices, even if an earlier notice has not reached all of them.
function L.dependents.begin(key, ref, notice)
  local prefix, job_id = L.record.split(ref)
  local pass = redis.call('EXISTS', notified_key(prefix, job_id)) == 1 and 'back' or 'notify'
  local row = table.concat({ pass, notice.outcome, notice.cause or '', notice.on_failure or '' }, '\n')
  redis.call('HSET', key .. ':notifying', ref, row)
end

-- Notifies the dependents of a job, in all queues, of its end. Returns true when gmo_advance_flow must continue: there
-- are too many, or one cannot run. notice: see rules.lua; count: the number of dependents, if the caller knows it.
function L.dependents.notify(flow, prefix, job_id, now, notice, count)
  local key, ref = L.record.key(flow.home, flow.id), prefix .. job_id
  local is_small = count and count <= SLICE
  if not is_small then
    count, is_small = L.dependents.count(prefix, job_id)
  end
  if not is_small then
    redis.call('SADD', flow.home .. 'gmo:todo', flow.id)
    L.dependents.begin(key, ref, notice)
    return true
  end
  local is_unfinished = false
  for _, dependent in ipairs(count > 0 and redis.call('SMEMBERS', prefix .. 'parents:' .. job_id) or {}) do
    is_unfinished = L.release.notify(flow, key, ref, dependent, notice, now) or is_unfinished
  end
  return is_unfinished
end

-- Whether the outcome still holds: a retry may have undone a failure in the meantime.
local function is_current(prefix, job_id, outcome)
  return outcome ~= 'failed' or redis.call('HGET', prefix .. 'job:' .. job_id, 'state') == 'failed'
end

-- Moves a slice of the notified dependents back; returns whether all are back. A missing job has no dependents.
local function move_back(prefix, job_id)
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

-- Notifies a slice of the dependents; returns whether all are notified now.
local function notify_some(flow, key, ref, notice, now)
  local prefix, job_id = L.record.split(ref)
  local parents, notified = prefix .. 'parents:' .. job_id, {}
  for _, dependent in ipairs(redis.call('SPOP', parents, SLICE)) do
    if notice.outcome == 'again' then
      L.rerun.forget(flow, key, ref, dependent, notice.cause)
    else
      L.release.notify(flow, key, ref, dependent, notice, now)
    end
    notified[#notified + 1] = dependent
  end
  if #notified > 0 then
    redis.call('SADD', notified_key(prefix, job_id), unpack(notified))
  end
  return redis.call('EXISTS', parents) == 0
end

-- Does a slice of one job with many dependents; returns how many such jobs remain.
function L.dependents.continue(flow, key, now)
  local notifying = key .. ':notifying'
  local ref = redis.call('HRANDFIELD', notifying)
  if not ref then
    return 0
  end
  local row = redis.call('HGET', notifying, ref)
  local pass, outcome, cause, on_failure = row:match('^(%w+)\n(%a+)\n([^\n]*)\n(.*)$')
  local prefix, job_id = L.record.split(ref)
  if pass ~= 'back' and pass ~= 'end' and is_current(prefix, job_id, outcome) then
    if notify_some(flow, key, ref, { outcome = outcome, cause = cause,
      on_failure = on_failure ~= '' and on_failure or nil, holds = L.rerun.is_giving(key) }, now) then
      redis.call('HSET', notifying, ref, 'end' .. row:sub(#pass + 1))
    end
  elseif move_back(prefix, job_id) then
    if pass == 'back' then
      redis.call('HSET', notifying, ref, 'notify' .. row:sub(#pass + 1))
    else
      redis.call('HDEL', notifying, ref)
    end
  end
  return redis.call('HLEN', notifying)
end

-- Removes the set of notified dependents of a removed job.
function L.dependents.forget(prefix, job_id)
  redis.call('UNLINK', notified_key(prefix, job_id))
end
